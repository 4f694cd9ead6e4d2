"""The interface of tools, and the interface through which tools call the root."""
