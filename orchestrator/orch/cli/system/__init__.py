"""The commands about the daemon and the installation."""
