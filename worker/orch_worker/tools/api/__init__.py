"""The contract of tools, and how they call the root."""
