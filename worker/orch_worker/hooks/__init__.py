"""Declaration, dispatch and observation of hooks."""
