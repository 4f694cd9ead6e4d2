"""Services of the root: parameters, results, callers and CLI verbs."""
