"""What hooks do to archives and compactions before they are on record, and what they hear of them."""

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
    """Archives the two turns of an agent with some hooks, and returns the agent."""

    async def archive(*hooks: Hook) -> Agent:
        agent = answered(tmp_path, hooks=hooks_of(*hooks).past)
        agent.plan(*HOLDERS)
        agent.archiving.turn_began()
        await agent.archiving.turn_ended("end_turn")
        while at_work := asyncio.all_tasks() - {asyncio.current_task()}:  # archiving, and hooks in their threads
            await asyncio.wait(at_work)
        agent.close()
        return agent

    return archive


async def test_a_blocked_archive_stays_in_the_conversation(archives: Callable[..., Any]) -> None:
    """What a hook does not let go stays word for word, and what else was to be archived goes."""
    keep = on("before_archive", lambda event: Block("mine") if event.messages[0] == user("one?") else None)
    agent = await archives(keep)
    assert agent.shown()[:3] == ["one?", "one", "two?"]
    assert "better said" in agent.shown()[3]
    assert [note.holders for note in agent.told] == [(HOLDERS[1],)]


async def test_a_guard_that_fails_lets_nothing_go(archives: Callable[..., Any]) -> None:
    """What nobody could look at is not archived."""
    agent = await archives(fails("before_archive"))
    assert agent.shown() == ["one?", "one", "two?", "two"]
    assert agent.told == []


async def test_a_summary_that_a_hook_supplies_is_what_stays(archives: Callable[..., Any]) -> None:
    """Under the holder's head stands what the hook said, and no model is asked to say it better."""
    agent = await archives(on("before_archive", lambda event: event.patch(summary=f"{event.task}: done")))
    assert agent.shown()[1] == f"[archived turn]\nsubagent_id: {HOLDERS[0]}\n\nt: done"
    assert agent.shown()[3].endswith("\n\nt: done")


async def test_lines_are_added_to_the_receipt(archives: Callable[..., Any]) -> None:
    """What a hook adds stands behind the receipt, on record, until a better text takes its place."""
    agent = Agent
    seen: list[Any] = []
    add = on("before_archive", {"inject": ["Ticket 12", "Reviewed"]}, "add")
    agent = await archives(add, on("archived", seen.append, "heard"))
    receipt = next(entry for entry in agent.transcript.session.entries if type(entry).__name__ == "ArchiveEntry")
    [text] = [block.text for block in receipt.collapse.messages[1].content]
    assert text.endswith("a receipt\nTicket 12\nReviewed")
    assert [(event.holder, event.kind, event.task) for event in seen] == [(holder, "turn", "t") for holder in HOLDERS]


async def test_a_compaction_can_be_cancelled_supplied_and_added_to() -> None:
    """What hooks say of a compaction is what it is made of; without any it is made as it would be."""

    async def said(*hooks: Hook) -> CompactionDecision | None:
        return await hooks_of(*hooks).past.before_compaction("size", [user("long ago")], 900, "be short")

    assert await said() == CompactionDecision("be short")
    assert await said(on("before_compaction", Block("not now"))) is None
    assert await said(fails("before_compaction")) is None
    told = on("before_compaction", lambda event: event.patch(instructions=f"{event.instructions}, name files"), "a")
    assert await said(told) == CompactionDecision("be short, name files")
    summary = on("before_compaction", lambda event: {"summary": f"{len(event.messages)} said", "inject": ["x"]}, "b")
    assert await said(told, summary) == CompactionDecision("be short, name files", "1 said", ("x",))


async def test_a_compaction_is_heard_of() -> None:
    """Once it is on record, hooks hear what stands there and how much it saved."""
    seen: list[Any] = []
    hooks = hooks_of(on("compaction", seen.append))
    hooks.past.compacted("asked", "short", tokens_before=900, tokens_after=90, supplied=True)
    await hooks.settled()
    [event] = seen
    assert (event.reason, event.summary, event.tokens_before, event.tokens_after, event.supplied) == (
        *("asked", "short", 900, 90),
        True,
    )
