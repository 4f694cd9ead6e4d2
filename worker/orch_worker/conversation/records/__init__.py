"""Facts about archived messages, found in texts: commands, results, paths and prose. Pure functions without I/O."""
