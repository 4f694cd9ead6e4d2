"""Commands that start, query, steer and end agents."""
