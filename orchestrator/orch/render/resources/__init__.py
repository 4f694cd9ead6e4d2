"""Text for extensions, hooks, notes, models and prompts."""
