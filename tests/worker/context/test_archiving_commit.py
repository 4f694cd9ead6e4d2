"""When what is archived leaves the conversation, who waits for that, and what happens when it cannot be."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from archiving_agent import CALL, ERA, HOLDERS, RESULT, Agent, answered, settle
from orch_protocol.agent.spec import ArchivalSpec
from orch_protocol.core.archives import Collapse
from orch_protocol.core.messages import assistant, user
from orch_protocol.services.archiving import ArchivePlan, CommitArchives
from orch_worker.conversation.stubs import stub_text, stubs_in
from orch_worker.session.log.append_log import AppendLog
from orch_worker.session.transcript import read_session
from virtual_clock import passed, virtual


@pytest.fixture
async def agent(tmp_path: Path) -> AsyncIterator[Agent]:
    """An agent that has answered twice."""
    agent = answered(tmp_path)
    yield agent
    agent.close()


class TestWhen:
    """The conversation changes between requests alone."""

    async def test_what_is_decided_during_a_request_waits_for_the_next(self, agent: Agent) -> None:
        """Until then neither file nor conversation knows of it."""
        agent.plan(HOLDERS[0])
        agent.planned.clear()
        agent.archiving.turn_began()
        await agent.archiving.turn_ended("end_turn")
        agent.archiving.turn_began()
        agent.say(user("three?"))
        await agent.archiving.before_request()
        agent.planned.set()
        await settle()
        assert agent.shown() == ["one?", "one", "two?", "two", "three?"]
        assert agent.told == []
        agent.say(CALL, RESULT)
        await agent.archiving.before_request()
        await settle()
        assert "a receipt" in agent.shown()[1]
        assert list(agent.backend.transcript())[-2:] == [CALL, RESULT]
        assert agent.told == [CommitArchives((HOLDERS[0],), agent.backend.context_tokens())]

    async def test_a_turn_that_ends_lets_it_go(self, agent: Agent) -> None:
        """Also one that failed, or was cancelled: no request of it is to come."""
        agent.plan(HOLDERS[0])
        agent.planned.clear()
        agent.archiving.turn_began()
        await agent.archiving.turn_ended("end_turn")
        agent.archiving.turn_began()
        await agent.archiving.before_request()
        agent.planned.set()
        await settle()
        await agent.archiving.turn_ended(None)
        assert "a receipt" in agent.shown()[1]

    async def test_a_running_turn_is_asked_about_when_it_is_large(self, tmp_path: Path) -> None:
        """And again when it has grown, not before each of its requests; what goes is gone before the next one."""
        agent = Agent(tmp_path, ArchivalSpec(high_tokens=400))
        agent.archiving.turn_began()
        for number in range(40):
            agent.say(user(f"{number} " + "word " * 20), assistant("done"))
            await agent.archiving.before_request()
            await settle()
        assert 10 < len(agent.asked) < 25
        assert {ask.stop_reason for ask in agent.asked} == {None}
        agent.close()

    @virtual
    async def test_a_late_summary_is_used_when_nothing_is_cached_any_more(self, tmp_path: Path) -> None:
        """After the time that providers keep a conversation, changing it costs nothing."""
        agent = answered(tmp_path)
        agent.plan(HOLDERS[0])
        agent.written.clear()
        agent.archiving.turn_began()
        await agent.archiving.turn_ended("end_turn")
        await settle()
        agent.archiving.turn_began()
        await agent.archiving.before_request()
        agent.written.set()
        await settle()
        await passed(200)
        await agent.archiving.before_request()
        assert "a receipt" in agent.shown()[1]
        await passed(301)
        await agent.archiving.before_request()
        assert "better said" in agent.shown()[1]
        assert read_session(agent.transcript.path.parent).view.late == {}
        agent.close()

    async def test_a_late_summary_is_used_when_the_prefix_breaks_before_it(self, agent: Agent) -> None:
        """What is archived next, at or before its place, takes it along."""
        agent.plan(*HOLDERS)
        agent.written.clear()
        agent.archiving.turn_began()
        await agent.archiving.turn_ended("end_turn")
        await settle()
        agent.archiving.turn_began()
        agent.say(user("three?"))
        await agent.archiving.before_request()
        agent.written.set()
        await settle()
        assert [next(iter(stubs_in(message)), "") for message in agent.backend.transcript()][1::2] == list(HOLDERS)
        assert "better said" not in str(agent.shown())
        items = agent.transcript.session.view.items
        stubs = (user("earlier"), assistant(stub_text("era", ERA, "x")))
        era = Collapse(ERA, "era", "t", items[0].first, items[1].last, stubs, (), "")
        agent.plans.append(ArchivePlan((era,)))
        await agent.archiving.turn_ended("end_turn")
        await settle()
        assert ["better said" in text for text in agent.shown()] == [False, False, False, True, False]


class TestWaiting:
    """With `wait` the reply comes when everything is done, unless that takes too long."""

    @virtual
    async def test_for_record_and_summary(self, tmp_path: Path) -> None:
        """Both are there when the turn has ended."""
        agent = waiting(tmp_path)
        await agent.archiving.turn_ended("end_turn")
        assert "better said" in agent.shown()[1]
        agent.transcript.close()

    @virtual
    async def test_not_for_ever(self, tmp_path: Path) -> None:
        """A model that says nothing has its time."""
        agent = waiting(tmp_path)
        agent.written.clear()
        began = asyncio.get_running_loop().time()
        await agent.archiving.turn_ended("end_turn")
        assert asyncio.get_running_loop().time() - began == pytest.approx(60, abs=1)
        assert "a receipt" in agent.shown()[1]
        agent.written.set()
        await settle()
        assert "better said" in agent.shown()[1]
        agent.transcript.close()

    @virtual
    async def test_not_when_somebody_is_in_a_hurry(self, tmp_path: Path) -> None:
        """Whoever cancels what seems to hang has the reply at once; archiving goes on behind it."""
        agent = waiting(tmp_path)
        agent.planned.clear()
        ending = asyncio.ensure_future(agent.archiving.turn_ended("end_turn"))
        await passed(1)
        agent.archiving.hurry()
        await passed(1)
        assert ending.done()
        agent.planned.set()
        await settle()
        assert "better said" in agent.shown()[1]
        agent.transcript.close()

    @virtual
    async def test_not_after_a_turn_that_was_cancelled(self, tmp_path: Path) -> None:
        """It is to be over."""
        agent = waiting(tmp_path)
        agent.planned.clear()
        began = asyncio.get_running_loop().time()
        await agent.archiving.turn_ended("cancelled")
        assert asyncio.get_running_loop().time() == began
        agent.close()
        await settle()


class TestFaults:
    """What cannot be put on record stays where it is, and somebody is told."""

    @pytest.mark.parametrize("name", ["_write", "_fdatasync"])
    async def test_the_disk_fails(self, agent: Agent, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
        """The conversation is what it was; a file that is not to be trusted any more is one to leave."""
        agent.plan(HOLDERS[0])

        def broken(*_: Any) -> int:
            raise OSError(5, "input/output error")

        monkeypatch.setattr(AppendLog, name, staticmethod(broken))
        agent.archiving.turn_began()
        await agent.archiving.turn_ended("end_turn")
        await settle()
        assert agent.shown() == ["one?", "one", "two?", "two"]
        assert "input/output" in agent.told[0].problem
        assert agent.faults == [name == "_fdatasync"]

    async def test_a_plan_that_does_not_fit_any_more(self, agent: Agent) -> None:
        """All of it is left undone."""
        agent.plan(*HOLDERS)
        first, second = agent.plans[0].collapses
        agent.plans[0] = ArchivePlan((first, replace(second, first="nobody")))
        size = agent.transcript.log.end
        agent.archiving.turn_began()
        await agent.archiving.turn_ended("end_turn")
        await settle()
        assert agent.shown() == ["one?", "one", "two?", "two"]
        assert agent.transcript.log.end == size
        assert "not any more, a part" in agent.told[0].problem

    @virtual
    async def test_a_late_summary_that_cannot_be_written_stays_late(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """The request is made all the same."""
        agent = answered(tmp_path)
        agent.plan(HOLDERS[0])
        agent.written.clear()
        agent.archiving.turn_began()
        await agent.archiving.turn_ended("end_turn")
        await settle()
        agent.archiving.turn_began()
        await agent.archiving.before_request()
        agent.written.set()
        await settle()
        await passed(400)

        def full(*_: Any) -> int:
            raise OSError(28, "no space")

        monkeypatch.setattr(AppendLog, "_write", staticmethod(full))
        await agent.archiving.before_request()
        assert "a receipt" in agent.shown()[1]
        assert agent.transcript.session.view.late.keys() == {HOLDERS[0]}
        agent.close()

    async def test_stopped_in_the_middle(self, agent: Agent) -> None:
        """Nothing goes on behind its back: neither what was begun nor what waited for that."""
        agent.plan(HOLDERS[0])
        agent.planned.clear()
        for _ in range(2):
            agent.archiving.turn_began()
            await agent.archiving.turn_ended("end_turn")
        await settle()
        agent.archiving.stop()
        agent.planned.set()
        await settle()
        assert agent.shown() == ["one?", "one", "two?", "two"]
        assert len(agent.asked) == 1
        assert not [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]


def waiting(folder: Path) -> Agent:
    """Return an agent that waits for its archiving, at the end of a turn that is to be archived."""
    agent = Agent(folder, ArchivalSpec(wait=True))
    agent.say(user("one?"), assistant("one"))
    agent.plan(HOLDERS[0])
    agent.archiving.turn_began()
    return agent
