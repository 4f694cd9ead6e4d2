"""Landlock, seccomp and bubblewrap."""
