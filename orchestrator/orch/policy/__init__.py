"""Approvals, grants, budgets and rate limits."""
