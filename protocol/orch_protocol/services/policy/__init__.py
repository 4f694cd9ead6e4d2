"""Services for approvals, budgets and rate limits."""
