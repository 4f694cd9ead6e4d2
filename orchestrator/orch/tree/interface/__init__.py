"""What goes into the tree, and what comes out: events, and decisions with instructions for the supervisor."""
