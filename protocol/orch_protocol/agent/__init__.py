"""What an agent is started with: its specification and configuration."""
