"""The Python API: orchestrator, agents and sessions, async and sync."""
