"""Entries of session files, and the shapes of session trees."""
