"""The workspace of an agent: files, values and results that the agent can refer to."""
