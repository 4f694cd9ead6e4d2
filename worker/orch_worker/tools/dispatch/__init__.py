"""Which tools an agent has, and how a call is checked and run."""
