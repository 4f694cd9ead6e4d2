"""What agents may do and use: approvals, rules, sandbox levels, budgets and rate limits."""
