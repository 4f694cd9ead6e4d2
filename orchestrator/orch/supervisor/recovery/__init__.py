"""What a root finds after a crash: unfinished queries, orphans, half-done deletions."""
