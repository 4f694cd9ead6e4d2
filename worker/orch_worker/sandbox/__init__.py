"""The sandbox of tools: Landlock, seccomp and bubblewrap."""
