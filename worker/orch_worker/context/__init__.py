"""Compaction, archiving and summaries of a conversation."""
