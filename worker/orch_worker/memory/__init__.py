"""Long-term memory of an agent, and its tools."""
