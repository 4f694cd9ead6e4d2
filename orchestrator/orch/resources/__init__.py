"""Extensions, skills and prompt templates of a project or user."""
