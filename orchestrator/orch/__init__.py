"""Orch: subagents as real processes."""
