"""Events for tests of hooks, and a context that stores messages to the agent."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from orch_protocol.core.messages import Message, Text, ToolUse
from orch_protocol.hooks.events import ProviderResponse, ToolReturn
from orch_worker.hooks.hook import Hook


class Ctx:
    """A context that stores state and the messages to the agent."""

    def __init__(self) -> None:
        self.turn_state: dict[str, Any] = {}
        self.said: list[str] = []

    def steer(self, text: str) -> None:
        """Store a steering message."""
        self.said.append(text)

    def follow_up(self, text: str) -> None:
        """Store a follow-up message."""
        self.said.append(text)


def call(hook: Hook, event: Any, ctx: Ctx | None = None) -> Any:
    """Return the result of the hook for the event."""
    return hook.handler(event, ctx or Ctx())


def returned(name: str = "read_file", input: dict[str, Any] | None = None, **fields: Any) -> ToolReturn:
    """Return the result of a call."""
    return ToolReturn(id="1", name=name, input=input or {}, **{"text": "same", **fields})


def responded(text: str = "", calls: Sequence[str] = (), **fields: Any) -> ProviderResponse:
    """Return a response that contains `text` and calls the tools `calls`."""
    found = [Text(text)] if text else []
    uses = [ToolUse(f"c{number}", name, {}) for number, name in enumerate(calls)]
    return ProviderResponse(
        provider="scripted",
        model="scripted",
        text=text,
        message=Message("assistant", (*found, *uses)),
        stop_reason="tool_use" if uses else "end_turn",
        **fields,
    )
