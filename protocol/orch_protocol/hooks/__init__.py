"""Events, patches and options of hooks."""
