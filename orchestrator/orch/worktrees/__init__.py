"""Git worktrees of agents.

This package creates, reports, merges and removes worktrees. The functions run git and block.
"""
