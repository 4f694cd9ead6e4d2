"""Frames, and the messages that processes exchange."""
