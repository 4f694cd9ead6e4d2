"""Deadlines, heartbeats and timers."""
