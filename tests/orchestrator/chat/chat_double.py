"""A chat with a fake connection, a fake screen and a fake clock."""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec

from orch.chat.app import Chat
from orch.chat.daemon_connection import DaemonConnection, OnEvent
from orch.chat.text.live_text import LiveText
from orch.client.failure import CommandError
from orch_protocol.core.messages import Message
from orch_protocol.policy.approval import Question
from orch_protocol.services.agents.watch import WatchAgent
from orch_protocol.services.dispatch.registry import SERVICES
from orch_protocol.wire.watch_events import RecentMessages, TurnEnded, TurnStarted
from orchestrator.daemon_double import REPLY, ROW

AGENT = ROW | {"id": "abc", "name": "n", "queries": 1, "last_activity": "2026-01-01T00:00:00+00:00"}


COMMAND = {"name": "kill", "aliases": ["end"], "summary": "end an agent", "arguments": []}


class Wire(DaemonConnection):
    """A fake connection to the daemon. It records requests and returns given answers."""

    def __init__(self) -> None:
        super().__init__()
        self.asked: list[tuple[str, dict[str, Any]]] = []
        self.answers: dict[str, Any] = {
            "state": AGENT,
            "list": [AGENT],
            "show": {"agent": AGENT | {"queries": 0}, "messages": []},
            "submit": {"id": "abc", "query_id": "q"},
            "steer": {"id": "abc", "steer_id": "s1", "query_id": None},
            "queue": {"waiting": []},
            "answer": {"taken": True, "note": ""},
            "collect": REPLY,
            "cancel": AGENT,
            "kill": {"ids": []},
            "commands": {"commands": [COMMAND], "keys": [], "widgets": [], "digest": "1"},
        }
        self.said: list[Message] = []
        """The messages before a client begins to watch."""
        self.watched: list[dict[str, Any]] = []
        self.there = False
        self.tell: OnEvent = lambda _: None
        """The function that receives events for the watching client."""
        self.siblings: list[Wire] = []
        self.slow: dict[str, asyncio.Event] = {}
        self.dropped: list[Any] = []

    def executes(self, command: str, shown: str = "", **effect: str) -> None:
        """Set the result of a command."""
        made = {"agent": "", "text": ""} | effect if effect else None
        self.answers["execute"] = {"command": command, "text": shown, "data": None, "effect": made, "is_error": False}

    async def call(self, method: str, *, dropped: Any = None, **params: Any) -> Any:
        """Record the call and return the answer."""
        if method in self.slow:
            if dropped is not None:
                self.dropped.append(dropped)
            await self.slow[method].wait()
        msgspec.convert(params, SERVICES[method].params)
        self.asked.append((method, params))
        answer = self.answers[method]
        if isinstance(answer, CommandError):
            raise answer
        return answer

    def sibling(self) -> Wire:
        """Return another connection, and add it to `siblings`."""
        self.siblings.append(Wire())
        return self.siblings[-1]

    def close(self) -> None:
        """Close the connection."""
        self.there = False

    @property
    def watching(self) -> bool:
        """Whether a client is watching."""
        return self.there

    def watch(self, params: dict[str, Any], on_event: OnEvent, _: Any) -> None:
        """Record the request to watch, and send the earlier events."""
        if limit := msgspec.convert(params, WatchAgent).messages:
            on_event(msgspec.to_builtins(RecentMessages(tuple(self.said[-limit:]), max(0, len(self.said) - limit))))
        self.watched.append(params)
        self.tell = on_event
        self.there = True

    def of(self, method: str) -> list[dict[str, Any]]:
        """Return the parameters of all calls of `method`."""
        return [params for name, params in self.asked if name == method]


class Talk:
    """A chat with a fake connection, a fake screen and a fake clock."""

    def __init__(self, **how: Any) -> None:
        self.now = 0.0
        self.wire = Wire()
        self.output = LiveText()
        self.chat = Chat(self.wire, self.output, clock=lambda: self.now, **how)

    async def begin(self) -> Talk:
        """Open the agent in the chat."""
        await self.chat.switch_to("1", is_new=True)
        self.output.take()  # discard the lines that introduce the agent
        return self

    def shown(self) -> list[str]:
        """Return the lines since the last call, including the current line."""
        lines = self.output.take() + self.output.live
        return ["".join(text for _, text in line) for line in lines]

    def began(self, **more: Any) -> None:
        """Start a turn that this chat requested. `more` overrides the fields of the event."""
        request = self.wire.of("submit")[-1]["request_id"] if self.wire.of("submit") else None
        fields: dict[str, Any] = {"query_id": "q", "prompt": "go", "request_id": request}
        self.chat.event(msgspec.to_builtins(TurnStarted(**(fields | more))))

    async def ended(self, **more: Any) -> None:
        """End the turn."""
        self.chat.event(msgspec.to_builtins(TurnEnded("q")) | {"reply": REPLY | {"steps": 1}} | more)
        for _ in range(20):
            await asyncio.sleep(0)


def event(n: int, kind: str, text: str = "", **more: Any) -> dict[str, Any]:
    """Return an event of a turn."""
    return {"n": n, "kind": kind, "text": text, **more}


def question(id: str = "q1", **changes: Any) -> dict[str, Any]:
    """Return the event of a question."""
    fields: dict[str, Any] = {"tool": "bash", "subject": "rm x", "input": {"command": "rm x"}, "digest": "d"}
    fields |= {"paths": (), "reason": "why", "folder": "/w", "agent": "n", "agent_id": "abc", "task": "t", "depth": 1}
    asked: dict[str, Any] = msgspec.to_builtins(Question(id=id, **(fields | changes)).with_lines())
    return asked
