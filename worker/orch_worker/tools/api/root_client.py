"""The interface through which an agent calls its root."""

from __future__ import annotations

from collections.abc import Awaitable
from typing import Protocol, TypeVar

from msgspec import Struct

from orch_protocol.services.service import Service
from orch_protocol.wire.tool_events import CallReport

__all__ = ["CallRoot", "RootClient"]

P = TypeVar("P", bound=Struct)
R = TypeVar("R")


class CallRoot(Protocol):
    """A function that calls a service of the root and returns the result, or raises the OrchError in the
    root's answer.
    """

    def __call__(self, service: Service[P, R], params: P, seconds: float | None = None) -> Awaitable[R]: ...


class RootClient(Protocol):
    """The connection of an agent to its root."""

    def report(self, phase: str, detail: str, step: int) -> None:
        """Report the current activity of the agent."""

    async def call_root(self, service: Service[P, R], params: P, seconds: float | None = None) -> R:
        """Call a service of the root and return the result. Raise the OrchError in the root's answer."""

    def emit(self, query_id: str, kind: str, text: str, name: str, step: int, is_error: bool) -> None:
        """Report an event of a turn to the clients that watch the turn."""

    def is_watched(self) -> bool:
        """Return whether a client watches the current turn."""

    def called(self, query_id: str, called: CallReport) -> None:
        """Report the result of a tool call in a turn that clients observe."""

    def steering_recorded(self, steer_id: str) -> None:
        """Report that a steering message is now in the conversation."""

    def stop(self, code: int = 0) -> None:
        """End this agent's process with exit code `code`."""
