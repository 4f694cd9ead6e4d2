"""Extensions: folders that add hooks, tools and commands."""
