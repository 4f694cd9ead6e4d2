"""Commands of a session: which there are, how a line is read, and what each does."""
