"""The channel between a worker and its root."""
