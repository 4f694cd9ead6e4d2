"""Archiving in the worker: the conversation changes between requests and never during a request."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from archiving_agent import CALL, HOLDERS, RESULT, Agent, answered, settle
from orch_protocol.agent.spec import ArchivalSpec
from orch_protocol.core.messages import text_of, user
from orch_protocol.session.entries import ArchiveEntry
from virtual_clock import virtual

SMALL = ArchivalSpec(high_tokens=50)


@pytest.fixture
async def agent(tmp_path: Path) -> AsyncIterator[Agent]:
    """An agent that has answered twice."""
    agent = answered(tmp_path, SMALL)
    yield agent
    agent.close()


async def test_summary_finished_during_a_request_waits_for_its_end(agent: Agent) -> None:
    """The running calls keep their results, and the record keeps its receipt."""
    agent.plan(HOLDERS[0])
    agent.noted.clear()
    agent.archiving.turn_began()
    await agent.archiving.turn_ended("end_turn")
    await settle()
    assert "a receipt" in agent.shown()[1]
    agent.archiving.turn_began()
    agent.say(user("three?"))
    await agent.archiving.before_request()
    agent.say(CALL)
    agent.noted.set()
    await settle()
    agent.say(RESULT)
    assert list(agent.backend.transcript())[-2:] == [CALL, RESULT]
    assert "a receipt" in agent.shown()[1]
    assert agent.transcript.session.view.pending_records.keys() == {HOLDERS[0]}


async def test_summary_finished_before_the_next_request_is_used(agent: Agent) -> None:
    """No cached prefix depends on the receipt yet."""
    agent.plan(HOLDERS[0])
    agent.archiving.turn_began()
    await agent.archiving.turn_ended("end_turn")
    await settle()
    assert "better said" in agent.shown()[1]


async def test_archiving_is_dropped_when_the_conversation_goes_back(agent: Agent) -> None:
    """The turn is on another branch, so it is not archived, and no error is raised."""
    agent.planned.clear()
    agent.plan(*HOLDERS)
    agent.archiving.turn_began()
    await agent.archiving.turn_ended("end_turn")
    await settle()
    agent.archiving.on_branch_changed()
    agent.transcript.checkout(agent.transcript.session.view.items[1].last)
    agent.planned.set()
    await settle()
    assert [text_of(message) for message in agent.transcript.session.messages] == agent.shown()[:2]
    assert not [entry for entry in agent.transcript.session.entries if isinstance(entry, ArchiveEntry)]
    assert len(agent.asked) == 1


async def test_archiving_does_not_wait_for_summaries(agent: Agent) -> None:
    """A slow summary of one archive does not delay the next archive."""
    agent.written.clear()
    for holder in HOLDERS:
        agent.plan(holder)
        agent.archiving.turn_began()
        await agent.archiving.turn_ended("end_turn")
        await settle()
    assert len(agent.asked) == 2


async def test_failed_summary_does_not_affect_the_others(agent: Agent) -> None:
    """Summaries of other archives are used."""
    agent.fails = {HOLDERS[0]}
    agent.plan(*HOLDERS)
    agent.archiving.turn_began()
    await agent.archiving.turn_ended("end_turn")
    await settle()
    assert "a receipt" in agent.shown()[1]
    assert "better said" in agent.shown()[3]


async def test_root_receives_the_state_at_the_end_of_the_turn(agent: Agent) -> None:
    """Work of a later turn is not included."""
    agent.archiving.turn_began()
    await agent.archiving.turn_ended("end_turn")
    last = agent.transcript.session.view.items[-1].last
    agent.archiving.turn_began()
    agent.say(user("three?"), CALL, RESULT)
    await settle()
    assert [(ask.stop_reason, ask.last) for ask in agent.asked] == [("end_turn", last)]


@virtual
async def test_large_request_waits_for_archiving(tmp_path: Path) -> None:
    """A request above the high water is sent after the plan is committed."""
    agent = answered(tmp_path, SMALL)
    agent.archiving.turn_began()
    agent.say(user("three?" + "x" * 300))
    agent.plan(*HOLDERS)
    await agent.archiving.before_request()
    assert agent.shown()[1].startswith("[archived turn]")
    assert asyncio.get_running_loop().time() == 0
    agent.close()


@virtual
async def test_request_does_not_wait_for_a_slow_root(tmp_path: Path) -> None:
    """The plan is committed before a later request."""
    agent = answered(tmp_path, SMALL)
    agent.planned.clear()
    agent.archiving.turn_began()
    agent.say(user("three?" + "x" * 300))
    agent.plan(HOLDERS[0])
    await agent.archiving.before_request()
    assert 0 < asyncio.get_running_loop().time() < 5
    assert agent.shown()[1] == "one"
    agent.planned.set()
    await settle()
    assert agent.shown()[1] == "one"
    assert len(agent.asked) == 1
    await agent.archiving.before_request()
    assert agent.shown()[1].startswith("[archived turn]")
    agent.close()


async def test_request_of_normal_size_does_not_ask_the_root(agent: Agent) -> None:
    """The root gets no request for a plan."""
    agent.archiving.turn_began()
    await agent.archiving.before_request()
    assert agent.asked == []


@virtual
async def test_continued_turn_archives_its_work_before_the_pause(tmp_path: Path) -> None:
    """The summary is ready when the turn continues."""
    agent = answered(tmp_path)
    agent.plan(*HOLDERS)
    agent.archiving.turn_began()
    await agent.archiving.turn_paused()
    assert [ask.stop_reason for ask in agent.asked] == ["max_turns"]
    assert "better said" in agent.shown()[1]
    assert "better said" in agent.shown()[3]
    assert asyncio.get_running_loop().time() == 0
    agent.close()


@virtual
async def test_continued_turn_does_not_wait_for_a_slow_summary(tmp_path: Path) -> None:
    """The turn continues with the receipt. A late summary is not inserted during a request."""
    agent = answered(tmp_path, ArchivalSpec(summary_seconds=3))
    agent.plan(HOLDERS[0])
    agent.written.clear()
    agent.archiving.turn_began()
    await agent.archiving.turn_paused()
    assert "a receipt" in agent.shown()[1]
    assert asyncio.get_running_loop().time() == 3
    agent.say(user("three?"))
    await agent.archiving.before_request()
    agent.written.set()
    await settle()
    assert "a receipt" in agent.shown()[1]
    agent.close()


@virtual
async def test_cancel_does_not_wait_for_archiving(tmp_path: Path) -> None:
    """A cancel ends the wait even if the root is slow."""
    agent = answered(tmp_path)
    agent.planned.clear()
    agent.archiving.turn_began()
    pausing = asyncio.create_task(agent.archiving.turn_paused())
    await settle()
    agent.archiving.end_waits()
    await pausing
    assert asyncio.get_running_loop().time() == 0
    agent.close()
