"""Archival: finished work leaves the conversation, whole and findable, and a short record of it stays."""
