"""The commands that start, ask, steer and end agents."""
