"""The process that runs an agent's tools, and the worker's connection to it."""
