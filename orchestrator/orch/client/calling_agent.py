"""Finds out whether this process is a command of an agent. Such a command sets only what an agent may set."""

from __future__ import annotations

import os

from .connection import daemon_status

__all__ = ["calling_agent"]

RUN_VARIABLE = "ORCH_RUN"
"""A copy of `orch.processes.environment.RUN_VARIABLE`, because importing that module is slow."""


def calling_agent() -> str | None:
    """Return the id of the agent whose command this process is. Return None for the user.

    The variable only saves a request to the daemon, which knows the answer. Raises CommandError.
    """
    if RUN_VARIABLE not in os.environ:
        return None
    id: str | None = (daemon_status() or {}).get("agent_id")
    return id
