"""Recovery after a crash. This package handles unfinished queries, orphaned processes and incomplete deletions."""
