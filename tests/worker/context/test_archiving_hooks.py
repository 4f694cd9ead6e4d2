"""Hooks of archiving and compaction: changes before the record, and notifications after it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from archiving_agent import HOLDERS, Agent, answered
from orch_protocol.core.messages import user
from orch_protocol.hooks.patches import Block
from orch_worker.agent.hooks import AgentHooks
from orch_worker.hooks.hook import Hook
from orch_worker.hooks.session_events import CompactionDecision
from worker.agent.test_turn_hooks import Hooked, Watched, fails, on


def hooks_of(*hooks: Hook) -> AgentHooks:
    """Return the hooks of an agent that has begun a turn."""
    talk = Hooked(Watched(), *hooks)
    talk.calls.turn_began("q", (), None)
    return talk.hooks


@pytest.fixture
def archives(tmp_path: Path) -> Callable[..., Any]:
    """A function that archives the two turns of an agent with the given hooks and returns the agent."""

    async def archive(*hooks: Hook) -> Agent:
        agent = answered(tmp_path, hooks=hooks_of(*hooks).archival)
        agent.plan(*HOLDERS)
        agent.archiving.turn_began()
        await agent.archiving.turn_ended("end_turn")
        while at_work := asyncio.all_tasks() - {asyncio.current_task()}:  # archiving, and hooks in their threads
            await asyncio.wait(at_work)
        agent.close()
        return agent

    return archive


async def test_archive_blocked_by_a_hook_stays_in_the_conversation(archives: Callable[..., Any]) -> None:
    """Other archives of the plan are committed."""
    keep = on("before_archive", lambda event: Block("mine") if event.messages[0] == user("one?") else None)
    agent = await archives(keep)
    assert agent.shown()[:3] == ["one?", "one", "two?"]
    assert "better said" in agent.shown()[3]
    assert [note.holders for note in agent.told] == [(HOLDERS[1],)]


async def test_failing_archive_guard_keeps_everything(archives: Callable[..., Any]) -> None:
    """The turns stay in the conversation."""
    agent = await archives(fails("before_archive"))
    assert agent.shown() == ["one?", "one", "two?", "two"]
    assert agent.told == []


async def test_hook_summary_replaces_the_models_summary(archives: Callable[..., Any]) -> None:
    """The summary follows the holder's header, and no model is called."""
    agent = await archives(on("before_archive", lambda event: event.patch(summary=f"{event.task}: done")))
    assert agent.shown()[1] == f"[archived turn]\nsubagent_id: {HOLDERS[0]}\n\nt: done"
    assert agent.shown()[3].endswith("\n\nt: done")


async def test_hook_lines_are_appended_to_the_receipt(archives: Callable[..., Any]) -> None:
    """The lines are recorded and stay until a summary replaces the receipt."""
    agent = Agent
    seen: list[Any] = []
    add = on("before_archive", {"inject": ["Ticket 12", "Reviewed"]}, "add")
    agent = await archives(add, on("archived", seen.append, "heard"))
    receipt = next(entry for entry in agent.transcript.session.entries if type(entry).__name__ == "ArchiveEntry")
    [text] = [block.text for block in receipt.collapse.messages[1].content]
    assert text.endswith("a receipt\nTicket 12\nReviewed")
    assert [(event.holder, event.kind, event.task) for event in seen] == [(holder, "turn", "t") for holder in HOLDERS]


async def test_hooks_cancel_supply_or_extend_a_compaction() -> None:
    """Without such hooks, the decision contains the given instructions."""

    async def said(*hooks: Hook) -> CompactionDecision | None:
        return await hooks_of(*hooks).archival.before_compaction("size", [user("long ago")], 900, "be short")

    assert await said() == CompactionDecision("be short")
    assert await said(on("before_compaction", Block("not now"))) is None
    assert await said(fails("before_compaction")) is None
    told = on("before_compaction", lambda event: event.patch(instructions=f"{event.instructions}, name files"), "a")
    assert await said(told) == CompactionDecision("be short, name files")
    summary = on("before_compaction", lambda event: {"summary": f"{len(event.messages)} said", "inject": ["x"]}, "b")
    assert await said(told, summary) == CompactionDecision("be short, name files", "1 said", ("x",))


async def test_hooks_are_notified_of_a_recorded_compaction() -> None:
    """The notification contains the reason, the summary, and the tokens before and after."""
    seen: list[Any] = []
    hooks = hooks_of(on("compaction", seen.append))
    hooks.archival.compacted("asked", "short", tokens_before=900, tokens_after=90, supplied=True)
    await hooks.before_steering()
    [event] = seen
    assert (event.reason, event.summary, event.tokens_before, event.tokens_after, event.supplied) == (
        *("asked", "short", 900, 90),
        True,
    )
