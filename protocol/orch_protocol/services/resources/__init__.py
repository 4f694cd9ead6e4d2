"""Services for tools, hooks, prompts, values, the workspace and slash commands."""
