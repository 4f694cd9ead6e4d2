"""Text of extensions, hooks, notes, models and prompts."""
