"""A chat with a wire, a sheet and a clock of its own."""

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
from orch_protocol.services.registry import SERVICES
from orch_protocol.wire.watch_events import RecentMessages, TurnEnded, TurnStarted, WatchAgent
from orchestrator.daemon_double import REPLY, ROW

AGENT = ROW | {"id": "abc", "name": "n", "queries": 1, "last_activity": "2026-01-01T00:00:00+00:00"}


COMMAND = {"name": "kill", "aliases": ["end"], "summary": "end an agent", "arguments": []}


class Wire(DaemonConnection):
    """Stands where the daemon would: keeps what it is asked, answers what it was told to."""

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
        """What was said before somebody watches."""
        self.watched: list[dict[str, Any]] = []
        self.there = False
        self.tell: OnEvent = lambda _: None
        """Tells whoever watches."""
        self.siblings: list[Wire] = []
        self.slow: dict[str, asyncio.Event] = {}
        self.dropped: list[Any] = []

    def executes(self, command: str, shown: str = "", **effect: str) -> None:
        """Let a command come to that."""
        made = {"agent": "", "text": ""} | effect if effect else None
        self.answers["execute"] = {"command": command, "text": shown, "data": None, "effect": made, "is_error": False}

    async def call(self, method: str, *, dropped: Any = None, **params: Any) -> Any:
        """Answer."""
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
        """Return another one, which is remembered."""
        self.siblings.append(Wire())
        return self.siblings[-1]

    def close(self) -> None:
        """Hang up."""
        self.there = False

    @property
    def watching(self) -> bool:
        """Whether somebody is watched."""
        return self.there

    def watch(self, params: dict[str, Any], on_event: OnEvent, _: Any) -> None:
        """Take note of it, and tell what was said before."""
        if most := msgspec.convert(params, WatchAgent).messages:
            on_event(msgspec.to_builtins(RecentMessages(tuple(self.said[-most:]), max(0, len(self.said) - most))))
        self.watched.append(params)
        self.tell = on_event
        self.there = True

    def of(self, method: str) -> list[dict[str, Any]]:
        """Return the parameters of all calls of `method`."""
        return [params for name, params in self.asked if name == method]


class Talk:
    """A chat with a wire, a sheet and a clock of its own."""

    def __init__(self, **how: Any) -> None:
        self.now = 0.0
        self.wire = Wire()
        self.sheet = LiveText()
        self.chat = Chat(self.wire, self.sheet, clock=lambda: self.now, **how)

    async def begin(self) -> Talk:
        """Meet the agent."""
        await self.chat.meet("1", fresh=True)
        self.sheet.take()  # with whom one talks
        return self

    def shown(self) -> list[str]:
        """Return the lines since, and the one under way."""
        lines = self.sheet.take() + self.sheet.live
        return ["".join(text for _, text in line) for line in lines]

    def began(self, **more: Any) -> None:
        """Let a turn begin that was asked for here, unless `more` says otherwise."""
        request = self.wire.of("submit")[-1]["request_id"] if self.wire.of("submit") else None
        fields: dict[str, Any] = {"query_id": "q", "prompt": "go", "request_id": request}
        self.chat.event(msgspec.to_builtins(TurnStarted(**(fields | more))))

    async def ended(self, **more: Any) -> None:
        """Let the turn end."""
        self.chat.event(msgspec.to_builtins(TurnEnded("q")) | {"reply": REPLY | {"steps": 1}} | more)
        for _ in range(20):
            await asyncio.sleep(0)


def event(n: int, kind: str, text: str = "", **more: Any) -> dict[str, Any]:
    """Return an event of a turn."""
    return {"n": n, "kind": kind, "text": text, **more}


def question(id: str = "q1", **changes: Any) -> dict[str, Any]:
    """Return a question as it arrives."""
    fields: dict[str, Any] = {"tool": "bash", "subject": "rm x", "input": {"command": "rm x"}, "digest": "d"}
    fields |= {"paths": (), "reason": "why", "folder": "/w", "agent": "n", "agent_id": "abc", "task": "t", "depth": 1}
    asked: dict[str, Any] = msgspec.to_builtins(Question(id=id, **(fields | changes)).with_lines())
    return asked
