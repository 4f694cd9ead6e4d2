"""The client side of the control socket, which sends requests to the daemon and starts the daemon."""
