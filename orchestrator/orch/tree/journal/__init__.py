"""Events and journal entries of a run, and the journal's file."""
