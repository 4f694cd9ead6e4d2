"""The specification and configuration of an agent."""
