"""The client side of the control socket: requests to the daemon, and starting it."""
