"""`orch demo`: a long session with archival, recall, a killed process and three subagents, without a key."""
