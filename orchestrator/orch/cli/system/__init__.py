"""The commands for the daemon and the installation."""
