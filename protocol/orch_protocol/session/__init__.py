"""Entries of session files, and requests about sessions."""
