"""Extensions, skills, prompt templates and memory notes of a project or user."""
