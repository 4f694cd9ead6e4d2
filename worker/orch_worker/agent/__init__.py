"""The runtime of an agent: turns, phases, steering and hooks."""
