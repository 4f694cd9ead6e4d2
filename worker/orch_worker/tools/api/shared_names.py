"""The variables that a program shares with agents in its own process."""

from __future__ import annotations

from typing import Any, Final

__all__ = ["SHARED_TOOLS", "share_names", "shared_names", "unshare_names"]

SHARED_TOOLS: Final = frozenset({"run_python", "describe_variables", "read_handle"})
"""Tools that use the variables. They run in the program, not in a tool host."""

_shared: dict[str, dict[str, Any]] = {}


def share_names(agent_id: str, names: dict[str, Any]) -> None:
    """Allow code of an agent in this process to use the variables `names` of the program."""
    _shared[agent_id] = names


def unshare_names(agent_id: str) -> None:
    """Stop sharing the variables of the program with the agent."""
    _shared.pop(agent_id, None)


def shared_names(agent_id: str) -> dict[str, Any] | None:
    """Return the variables that the program shares with the agent, or None."""
    return _shared.get(agent_id)
