"""The commands for hooks, extensions, skills, memory, workspace, models and costs."""
