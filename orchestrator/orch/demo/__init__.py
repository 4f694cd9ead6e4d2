"""The demo shows a long session with archival, recall, a killed process and three subagents. It needs no key."""
