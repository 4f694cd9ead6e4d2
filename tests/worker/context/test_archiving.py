"""What an agent does about its past between its requests, and never during one."""

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


async def test_a_summary_that_comes_during_a_request_waits(agent: Agent) -> None:
    """What is asked meanwhile has seen the receipt, and calls that are under way keep their results."""
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
    assert agent.transcript.session.view.late.keys() == {HOLDERS[0]}


async def test_a_summary_that_comes_before_the_next_request_is_used(agent: Agent) -> None:
    """Nothing is cached behind the receipt then."""
    agent.plan(HOLDERS[0])
    agent.archiving.turn_began()
    await agent.archiving.turn_ended("end_turn")
    await settle()
    assert "better said" in agent.shown()[1]


async def test_what_was_to_leave_stays_when_the_conversation_goes_back(agent: Agent) -> None:
    """It is another branch's by then: nothing of it is archived, and nothing has gone wrong."""
    agent.planned.clear()
    agent.plan(*HOLDERS)
    agent.archiving.turn_began()
    await agent.archiving.turn_ended("end_turn")
    await settle()
    agent.archiving.moved()
    agent.transcript.checkout(agent.transcript.session.view.items[1].last)
    agent.planned.set()
    await settle()
    assert [text_of(message) for message in agent.transcript.session.messages] == agent.shown()[:2]
    assert not [entry for entry in agent.transcript.session.entries if isinstance(entry, ArchiveEntry)]
    assert len(agent.asked) == 1


async def test_archiving_does_not_wait_for_summaries(agent: Agent) -> None:
    """A model that takes its time keeps nothing else from leaving."""
    agent.written.clear()
    for holder in HOLDERS:
        agent.plan(holder)
        agent.archiving.turn_began()
        await agent.archiving.turn_ended("end_turn")
        await settle()
    assert len(agent.asked) == 2


async def test_one_summary_that_fails_is_one(agent: Agent) -> None:
    """Those of other archives come all the same."""
    agent.fails = {HOLDERS[0]}
    agent.plan(*HOLDERS)
    agent.archiving.turn_began()
    await agent.archiving.turn_ended("end_turn")
    await settle()
    assert "a receipt" in agent.shown()[1]
    assert "better said" in agent.shown()[3]


async def test_the_root_is_told_what_a_turn_ended_with(agent: Agent) -> None:
    """By then another one may have begun: what that has done is not to be taken for done."""
    agent.archiving.turn_began()
    await agent.archiving.turn_ended("end_turn")
    last = agent.transcript.session.view.items[-1].last
    agent.archiving.turn_began()
    agent.say(user("three?"), CALL, RESULT)
    await settle()
    assert [(ask.stop_reason, ask.last) for ask in agent.asked] == [("end_turn", last)]


@virtual
async def test_a_request_that_is_too_large_waits_until_it_is_smaller(tmp_path: Path) -> None:
    """It is not sent once more as it is, while what could leave it is being worked out."""
    agent = answered(tmp_path, SMALL)
    agent.archiving.turn_began()
    agent.say(user("three?" + "x" * 300))
    agent.plan(*HOLDERS)
    await agent.archiving.before_request()
    assert agent.shown()[1].startswith("[archived turn]")
    assert asyncio.get_running_loop().time() == 0
    agent.close()


@virtual
async def test_a_request_does_not_wait_for_a_root_that_takes_its_time(tmp_path: Path) -> None:
    """It is made, and what can leave the conversation leaves it before a later one."""
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


async def test_a_request_of_usual_size_waits_for_nothing(agent: Agent) -> None:
    """The root is not asked."""
    agent.archiving.turn_began()
    await agent.archiving.before_request()
    assert agent.asked == []


@virtual
async def test_a_turn_that_goes_on_goes_on_from_its_archive(tmp_path: Path) -> None:
    """What it did so far leaves at once, as at its end, and the summary is there when it is asked to go on."""
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
async def test_a_turn_goes_on_without_a_summary_that_takes_its_time(tmp_path: Path) -> None:
    """Its receipt is there; and after the pause the conversation changes between requests alone, as before."""
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
async def test_whoever_cancels_does_not_wait_for_the_archive(tmp_path: Path) -> None:
    """A root that takes its time keeps nobody."""
    agent = answered(tmp_path)
    agent.planned.clear()
    agent.archiving.turn_began()
    pausing = asyncio.create_task(agent.archiving.turn_paused())
    await settle()
    agent.archiving.hurry()
    await pausing
    assert asyncio.get_running_loop().time() == 0
    agent.close()
