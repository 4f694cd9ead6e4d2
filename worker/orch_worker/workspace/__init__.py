"""Files and values that an agent keeps at hand."""
