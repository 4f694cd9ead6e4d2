"""Calling a service: callers, handlers, and the checks before a call."""
