"""The supervisor: applies decisions of the tree to processes, timers and files."""
