"""Decides when to archive. The decisions use triggers, expected savings, and rules for merging records."""
