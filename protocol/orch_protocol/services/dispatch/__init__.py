"""All services by name."""
