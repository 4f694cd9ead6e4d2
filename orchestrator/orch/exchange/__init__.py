"""Conversations from other programs' files, and ours for other programs."""
