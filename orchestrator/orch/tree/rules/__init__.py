"""What follows from an event: limits, restarts, results, steering and deletions."""
