"""`orch proxy`: the gateway as an HTTP server between clients and model APIs."""
