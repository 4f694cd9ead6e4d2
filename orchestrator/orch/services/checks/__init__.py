"""Checks that several services share: reach, idleness and local-only content."""
