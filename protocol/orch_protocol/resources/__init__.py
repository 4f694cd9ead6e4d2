"""Data types of skills, memory, extensions, slash commands and key bindings."""
