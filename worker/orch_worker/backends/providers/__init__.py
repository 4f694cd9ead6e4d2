"""Provider APIs, one per module."""
