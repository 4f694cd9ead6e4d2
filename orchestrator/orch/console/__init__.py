"""Talking with an agent at a terminal: what is shown, what is typed, and what becomes of it."""
