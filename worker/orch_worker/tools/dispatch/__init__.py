"""The tools of an agent, and the checks and the execution of calls."""
