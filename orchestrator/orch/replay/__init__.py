"""Replay recorded sessions with other archival policies to compare costs. A replay creates real archives."""
