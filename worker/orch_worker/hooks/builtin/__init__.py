"""The built-in hooks, one per module."""
