"""Tools that start, query and plan agents."""
