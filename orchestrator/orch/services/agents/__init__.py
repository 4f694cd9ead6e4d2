"""Services that start, ask, watch and end agents."""
