"""What an agent has at hand, and what of it a request is told."""
