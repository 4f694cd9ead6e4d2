"""Commits of archives: when archived messages leave the conversation, what waits for it, and what follows a failure."""

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
from orch_protocol.services.archives.archiving import ArchivePlan, CommitArchives
from orch_worker.conversation.stubs import stub_text, stubs_in
from orch_worker.session.log.append_log import AppendLog
from orch_worker.session.session_reader import read_session
from virtual_clock import passed, virtual


@pytest.fixture
async def agent(tmp_path: Path) -> AsyncIterator[Agent]:
    """An agent that has answered twice."""
    agent = answered(tmp_path)
    yield agent
    agent.close()


class TestWhen:
    """The conversation changes only between requests."""

    async def test_decision_during_a_request_is_committed_before_the_next(self, agent: Agent) -> None:
        """Until then, neither the file nor the conversation changes."""
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

    async def test_end_of_a_turn_commits_pending_archives(self, agent: Agent) -> None:
        """The end of a failed or cancelled turn commits archives, too."""
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

    async def test_large_running_turn_is_planned_again_only_after_growth(self, tmp_path: Path) -> None:
        """The worker asks the root again only after the conversation has grown."""
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
    async def test_late_summary_is_used_when_the_cache_has_expired(self, tmp_path: Path) -> None:
        """After the provider's cache has expired, changing the conversation costs nothing."""
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
        assert read_session(agent.transcript.path.parent).view.pending_records == {}
        agent.close()

    async def test_late_summary_is_used_when_an_earlier_change_breaks_the_prefix(self, agent: Agent) -> None:
        """The summary is inserted when an earlier part of the conversation is archived."""
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
    """With `wait`, the reply comes after archiving, unless that takes too long."""

    @virtual
    async def test_turn_waits_for_record_and_summary_when_configured(self, tmp_path: Path) -> None:
        """The record contains the summary when the turn has ended."""
        agent = waiting(tmp_path)
        await agent.archiving.turn_ended("end_turn")
        assert "better said" in agent.shown()[1]
        agent.transcript.close()

    @virtual
    async def test_wait_for_a_summary_times_out(self, tmp_path: Path) -> None:
        """The reply comes with the receipt, and the late summary is used afterwards."""
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
    async def test_cancel_ends_the_wait_for_archiving(self, tmp_path: Path) -> None:
        """The reply returns at once, and archiving continues in the background."""
        agent = waiting(tmp_path)
        agent.planned.clear()
        ending = asyncio.ensure_future(agent.archiving.turn_ended("end_turn"))
        await passed(1)
        agent.archiving.end_waits()
        await passed(1)
        assert ending.done()
        agent.planned.set()
        await settle()
        assert "better said" in agent.shown()[1]
        agent.transcript.close()

    @virtual
    async def test_cancelled_turn_does_not_wait_for_archiving(self, tmp_path: Path) -> None:
        """A cancelled turn ends at once."""
        agent = waiting(tmp_path)
        agent.planned.clear()
        began = asyncio.get_running_loop().time()
        await agent.archiving.turn_ended("cancelled")
        assert asyncio.get_running_loop().time() == began
        agent.close()
        await settle()


class TestFaults:
    """If an archive cannot be recorded, the conversation is unchanged and the root is notified."""

    @pytest.mark.parametrize("name", ["_write", "_fdatasync"])
    async def test_write_failure_leaves_the_conversation_unchanged(
        self, agent: Agent, monkeypatch: pytest.MonkeyPatch, name: str
    ) -> None:
        """After a failed sync, the log itself counts as faulty."""
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

    async def test_outdated_plan_is_discarded_as_a_whole(self, agent: Agent) -> None:
        """If one part of the plan is outdated, no part is archived."""
        agent.plan(*HOLDERS)
        first, second = agent.plans[0].collapses
        agent.plans[0] = ArchivePlan((first, replace(second, first="nobody")))
        size = agent.transcript.log.end
        agent.archiving.turn_began()
        await agent.archiving.turn_ended("end_turn")
        await settle()
        assert agent.shown() == ["one?", "one", "two?", "two"]
        assert agent.transcript.log.end == size
        assert "no longer, a part" in agent.told[0].problem

    @virtual
    async def test_late_summary_that_cannot_be_written_does_not_stop_the_request(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """The request is made with the receipt."""
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
        assert agent.transcript.session.view.pending_records.keys() == {HOLDERS[0]}
        agent.close()

    async def test_stop_cancels_running_and_pending_archiving(self, agent: Agent) -> None:
        """No task remains."""
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
    """Return an agent with `wait` at the end of a turn that the plan archives."""
    agent = Agent(folder, ArchivalSpec(wait=True))
    agent.say(user("one?"), assistant("one"))
    agent.plan(HOLDERS[0])
    agent.archiving.turn_began()
    return agent
