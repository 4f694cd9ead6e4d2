"""Archival moves finished turns out of the conversation.

A short record of each turn remains in the conversation. The full messages are stored and stay searchable.
"""
