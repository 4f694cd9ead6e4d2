"""The process of one agent: its loop, its transcript and its tools."""
