"""The per-user daemon and its control socket."""
