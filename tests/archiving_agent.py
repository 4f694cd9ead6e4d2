"""The agent's part of archiving, without a process. The root returns given plans."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from orch_protocol.agent.spec import ArchivalSpec
from orch_protocol.core.archives import Collapse
from orch_protocol.core.errors import BackendError
from orch_protocol.core.messages import Message, Text, ToolResult, ToolUse, assistant, text_of, user
from orch_protocol.services.archives.archiving import ArchivePlan, CommitArchives, PlanArchiving, SummaryOrder
from orch_protocol.services.service import AnyService
from orch_worker.backends.offline.scripted import ScriptedBackend
from orch_worker.context.archiving import TurnArchiver
from orch_worker.context.summarizer import ArchiveSummary
from orch_worker.conversation.stubs import stub_text
from orch_worker.hooks.session_events import ArchivalHooks
from orch_worker.session.transcript import Transcript

__all__ = ["CALL", "ERA", "HOLDERS", "RESULT", "Agent", "answered", "settle"]

HOLDERS = ("aaaaaaaaaaaa", "bbbbbbbbbbbb")
ERA = "eeeeeeeeeeee"
CALL = Message("assistant", (ToolUse("c1", "look", {}),))
RESULT = Message("user", (ToolResult("c1", (Text("seen"),)),))


class Agent:
    """An agent with a transcript. Its root returns given plans, and its model returns given texts."""

    def __init__(self, folder: Path, spec: ArchivalSpec | None = None, hooks: ArchivalHooks | None = None) -> None:
        self.transcript = Transcript.open(folder, agent="a", cwd="/")
        self.backend = ScriptedBackend([])
        self.plans: list[ArchivePlan] = []
        self.asked: list[PlanArchiving] = []
        self.planned = asyncio.Event()
        self.planned.set()
        self.noted = asyncio.Event()
        self.noted.set()
        self.written = asyncio.Event()
        self.written.set()
        self.fails: set[str] = set()
        self.told: list[CommitArchives] = []
        self.faults: list[bool] = []
        self.archiving = TurnArchiver(
            spec or ArchivalSpec(),
            self.transcript,
            self.backend,
            self._call,
            summarizer=self,  # type: ignore[arg-type]
            tools=(),
            folder=folder,
            on_fault=lambda: self.faults.append(self.transcript.log.broken),
            hooks=lambda: hooks,
        )
        self.is_available = self.uses_own_model = True

    def _heard(self, message: Message) -> None:
        self.backend.append_user(message.content)

    async def _call(self, called: AnyService, params: Any, _: float) -> Any:
        service = called.name
        if service == "plan_archiving":
            self.asked.append(params)
            await self.planned.wait()
            return self.plans.pop(0) if self.plans else ArchivePlan()
        await self.noted.wait()
        self.told.append(params)
        return None

    async def summary(self, order: SummaryOrder, _: Sequence[Message]) -> ArchiveSummary | None:
        """Return a summary of an archive."""
        await self.written.wait()
        if order.holder in self.fails:
            raise BackendError("not today")
        return ArchiveSummary(stub_text("turn", order.holder, "Outcome: better said"))

    def say(self, *messages: Message) -> None:
        """Record `messages` and add them to the conversation."""
        for message in messages:
            self.transcript.message(message, "q")
            (self.backend.append_assistant if message.role == "assistant" else self._heard)(message)

    def plan(self, *holders: str) -> None:
        """Plan to archive each turn so far under one of `holders`. Each turn has two messages."""
        items = self.transcript.session.view.items
        collapses = [
            Collapse(
                holder,
                "turn",
                "t",
                items[2 * place].first,
                items[2 * place + 1].last,
                (items[2 * place].message, assistant(stub_text("turn", holder, "a receipt"))),
                (),
                "",
            )
            for place, holder in enumerate(holders)
        ]
        self.plans.append(ArchivePlan(tuple(collapses), tuple(map(SummaryOrder, holders))))

    def shown(self) -> list[str]:
        """Return the texts that the conversation shows."""
        return [text_of(message) for message in self.backend.transcript()]

    def close(self) -> None:
        """Close the transcript."""
        self.archiving.stop()
        self.transcript.close()


def answered(folder: Path, spec: ArchivalSpec | None = None, hooks: ArchivalHooks | None = None) -> Agent:
    """Return an agent that has answered two queries."""
    agent = Agent(folder, spec, hooks)
    agent.say(user("one?"), assistant("one"), user("two?"), assistant("two"))
    return agent


async def settle() -> None:
    """Let all pending tasks run."""
    for _ in range(20):
        await asyncio.sleep(0)
