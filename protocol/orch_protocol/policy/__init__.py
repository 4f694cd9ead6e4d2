"""Approvals, policy rules, sandbox levels, budgets and rate limits."""
