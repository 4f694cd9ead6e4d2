"""Frames and messages between processes."""
