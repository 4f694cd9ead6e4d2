"""What an agent can say to its root, whoever carries it there."""

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
    """Calls a service of the root and returns its result. Raises the OrchError that the root answers with."""

    def __call__(self, service: Service[P, R], params: P, seconds: float | None = None) -> Awaitable[R]: ...


class RootClient(Protocol):
    """What an agent can say to its root."""

    def report(self, phase: str, detail: str, step: int) -> None:
        """Tell what the agent does just now."""

    async def call_root(self, service: Service[P, R], params: P, seconds: float | None = None) -> R:
        """Call a service of the root and return its result. Raises the OrchError that the root answers with."""

    def emit(self, query_id: str, kind: str, text: str, name: str, step: int, is_error: bool) -> None:
        """Tell what happened in a turn, if somebody watches it or comes to."""

    def called(self, query_id: str, called: CallReport) -> None:
        """Tell what became of a call in a turn whose calls somebody observes."""

    def heard(self, steer_id: str) -> None:
        """Tell that what was said to the agent is in its conversation."""

    def stop(self, code: int = 0) -> None:
        """End this agent's process with exit code `code`."""
