"""The per-user daemon, its control socket and the client."""
