"""Rules of the tree about limits, restarts, results, steering messages and deletions."""
