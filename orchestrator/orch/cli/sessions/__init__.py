"""The commands for sessions and archives."""
