"""Tools that run commands and git."""
