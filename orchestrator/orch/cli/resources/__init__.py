"""The commands about hooks, extensions, skills, memory, workspace, models and costs."""
