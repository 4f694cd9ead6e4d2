"""Calls of services, with their callers, their handlers, and the checks before a call."""
