"""Services that spawn, query, steer, watch and end agents."""
