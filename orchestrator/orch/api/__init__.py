"""The Python API with orchestrators, agents and sessions, in an async and a sync version."""
