"""Services about models, rate limits, approvals and budgets."""
