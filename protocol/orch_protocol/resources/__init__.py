"""Skills, memory, extensions, slash commands and key bindings as data."""
