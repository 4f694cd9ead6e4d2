"""The variables of an agent's Python code, as descriptions for the process that keeps the agent's workspace."""

from __future__ import annotations

from orch_protocol.core.values import BoundName

from ..api.base import ToolContext
from .describe_value import describe_names

__all__ = ["bound_names", "own_bound_names"]


async def bound_names(context: ToolContext) -> dict[str, BoundName]:
    """Return the variables that the agent's code has bound."""
    host = context.host_of("run_python")
    return await host.bound_names() if host is not None else own_bound_names(context)


def own_bound_names(context: ToolContext) -> dict[str, BoundName]:
    """Return the variables that code in this process has bound.

    This function runs on the thread of the event loop, where no code can rebind names concurrently.
    """
    from .namespace import Namespace  # This import is slow and needed only after code ran.

    return describe_names(context.agent_object(Namespace).bound())
