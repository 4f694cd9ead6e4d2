"""Events and journal entries of a run, and the file they are kept in."""
