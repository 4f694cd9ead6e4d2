"""Parameters and results of the services of a root."""
