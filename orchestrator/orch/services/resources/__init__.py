"""Services about tools, hooks, prompts, values and slash commands."""
