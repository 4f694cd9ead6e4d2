"""Files, threads, imports and Linux system calls."""
