"""The interface through which a worker uses the agent's tool host."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from orch_protocol.core.values import BoundName, ValueInfo

    from .base import ToolContext, ToolOutput

__all__ = ["ToolHost"]


class ToolHost(Protocol):
    """The process that runs the built-in tools in `HOSTED` for one agent. See `orch_worker.tool_host`."""

    async def call(self, tool: str, input: dict[str, Any], context: ToolContext) -> ToolOutput:
        """Run a tool and return its result. Raise ToolError if the process cannot be started or ends."""

    async def export(self, name: str, context: ToolContext) -> ValueInfo:
        """Store the variable or handle `name` in a file, and describe it. Raise NoValueError on failure."""

    async def bound_names(self) -> dict[str, BoundName]:
        """Return the variables that the agent's code has bound. Empty if no process is running, or if it ends."""

    def code_ran(self) -> None:
        """Note that code ran, in the tool host or elsewhere, and may have changed any file."""

    def close(self) -> None:
        """End the process, its commands and its background jobs, within a few seconds."""
