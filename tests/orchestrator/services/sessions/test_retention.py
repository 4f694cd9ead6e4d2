"""Deletion of old sessions: which sessions are selected, and what remains of them."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path

import pytest

from orch import AsyncSubagent
from orch.cli.command import format_ranges, without_deleted
from orch.services.sessions import fork
from orch.services.sessions.retention import deletable_since
from orch.tree.agents.state import TreeState
from orch.tree.interface.events import (
    ChangeModel,
    ChangeTitle,
    CollectReply,
    DiscardSessions,
    KillRequested,
    LocalOnlyRequested,
    QueueSteering,
    ResumeRequested,
    StartQuery,
)
from orch.tree.journal.entries import ContentDeleted, CustomEventEmitted, Snapshot
from orch.tree.rules.deletions import redacted
from orch_protocol.agent.models import RecordModel
from orch_protocol.agent.spec import BackendSpec
from orch_protocol.core.errors import AgentBusyError, ConfigError, SessionDeletedError
from orch_worker.session.log.lock import FolderLock
from orchestrator.root_double import World, opened
from orchestrator.tree.rules.test_deletions import SECRET, Past, with_secret
from orchestrator.tree_double import Forest
from virtual_clock import until


def killed(forest: Forest, id: str) -> str:
    """Kill the agent and its descendants, and end their processes."""
    forest.handle(KillRequested((id,), "the user", {}))
    for node in list(forest.tree.agents):
        if node.running and node.status == "killed":
            forest.gone(node.spec.id)
    return id


def over(forest: Forest, before: float = 1000.0, *, keep: int = 0, idle: bool = False) -> list[str]:
    return sorted(node.spec.id for node in deletable_since(forest.tree.agents, before, keep=keep, idle=idle))


class TestWhich:
    """Sessions that are selected for deletion."""

    def test_killed_and_old_sessions_are_selected(self) -> None:
        """Only old sessions of killed agents are selected, not live, recent, ephemeral or deleted ones."""
        forest = Forest(max_concurrent=9)
        forest.spawn()
        killed(forest, forest.spawn(persist=False))
        old, gone = killed(forest, forest.spawn()), killed(forest, forest.spawn())
        forest.now += 10
        young = killed(forest, forest.spawn())
        assert over(forest) == [old, gone]
        forest.handle(DiscardSessions((gone,)))
        assert (over(forest), over(forest, 1010.0)) == ([old], [old, young])

    def test_idle_old_sessions_are_selected_when_configured(self) -> None:
        """Agents with a process or a query, and their ancestors, are not selected."""
        forest = Forest(max_concurrent=9, allow_nested=True)
        ended, above = killed(forest, forest.spawn()), forest.spawn(tools=("spawn_subagent",))
        below, died, up = forest.spawn(above, parent_id=above, depth=2), forest.spawn(), forest.spawn()
        for id in (above, below, died):
            forest.gone(id)
        forest.ask(up)
        assert over(forest) == [ended]
        assert over(forest, idle=True) == [ended, above, below, died]
        forest.ask(below)
        assert over(forest, idle=True) == [ended, died]
        forest.now += 10
        assert over(forest, 999.0, idle=True) == []

    def test_ancestors_of_a_kept_session_are_kept(self) -> None:
        """Deletion of an ancestor would end the kept session, unless a kill of the ancestor has ended it already."""
        forest = Forest(max_concurrent=9, allow_nested=True)
        above, alone = forest.spawn(tools=("spawn_subagent",)), forest.spawn()
        forest.now += 10
        below = forest.spawn(above, parent_id=above, depth=2)
        for id in (above, alone, below):
            forest.gone(id)
        forest.now += 10
        assert over(forest, forest.now, keep=1, idle=True) == [alone]
        killed(forest, above)
        assert over(forest, forest.now, keep=1, idle=True) == [above, alone]

    def test_sessions_with_active_descendants_are_kept(self) -> None:
        """A child that was resumed or an archive that was queried prevents the deletion."""
        forest = Forest(max_concurrent=9, allow_nested=True)
        parent = forest.spawn(tools=("spawn_subagent",))
        child = forest.spawn(parent, parent_id=parent, depth=2)
        killed(forest, parent)
        assert over(forest) == [parent, child]
        forest.handle(ResumeRequested(child))
        assert over(forest) == []
        past = Past()
        killed(past, past.agent)
        past.gone("h1")
        assert over(past) == [past.agent]
        past.now += 10
        past.turn("q3", "h1")
        assert over(past) == []


class TestRecord:
    """The tree and the journal after a deletion."""

    def test_deletion_record_contains_no_content(self) -> None:
        """The redacted journal has the same number of entries and gives the same tree."""
        past = Past(warm=False)
        past.handle(ChangeTitle(past.agent, SECRET))
        for script in ({"items": [SECRET], "context": 7}, {"items": [f"{SECRET}!"]}):
            past.handle(ChangeModel(past.agent, RecordModel(BackendSpec("scripted", options=script), "scripted")))
        past.handle(LocalOnlyRequested(past.agent, BackendSpec("scripted", options={"items": [SECRET]})))
        past.write([CustomEventEmitted(at=999.0, id=past.agent, name="deploy", data={"text": SECRET})])
        killed(past, past.agent)
        short = past.tree.agents.snapshot_entries(1000.0)
        past.handle(DiscardSessions((past.agent,)))
        for journal in (past.journal, [*short, past.journal[-1]]):
            after = redacted(journal)
            assert [type(entry) for entry in after] == [type(entry) for entry in journal]
            assert not with_secret(after)
            assert not [
                entry for entry in after if isinstance(entry, Snapshot) and SECRET.encode() in bytes(entry.state)
            ]
            assert TreeState(after).by_id == past.tree.agents.by_id
            assert TreeState(after).unremoved_folders == past.tree.agents.unremoved_folders == {past.agent: "/nowhere"}
            assert all(one is two for one, two in zip(after, redacted(after), strict=True))
        past.write([ContentDeleted(at=1000.0, id=past.agent, session="gone")])
        assert TreeState(redacted(past.journal)).unremoved_folders == {}

    def test_deleted_session_reports_its_deletion_date(self) -> None:
        """Requests raise an error with the date; number and usage are kept, and the name can be used again."""
        forest = Forest(max_concurrent=9)
        id = forest.spawn(name="reader")
        forest.ask(id)
        forest.finish(id)
        killed(forest, id)
        forest.handle(DiscardSessions((id,)))
        for event in (
            StartQuery(id, "q2", "?"),
            CollectReply(id, "the user"),
            QueueSteering(id, "s", "x"),
            ResumeRequested(id),
            DiscardSessions((id,)),
        ):
            with pytest.raises(SessionDeletedError, match=r"of agent 'reader' \(a001\) was deleted on 1970-01-01"):
                forest.handle(event)
        assert (forest.tree.agents[id].usage.cost_usd, forest.tree.agents.by_id.find_by_seq(1)) == (
            0.5,
            forest.tree.agents[id],
        )
        forest.spawn(name="reader")

    def test_session_resumed_meanwhile_is_not_deleted(self) -> None:
        """An agent that has a process, or that was resumed after its selection, is not deleted."""
        forest = Forest()
        id = forest.spawn()
        with pytest.raises(AgentBusyError, match="has a process, so its session was not deleted"):
            forest.handle(DiscardSessions((id,)))
        killed(forest, id)
        forest.handle(ResumeRequested(id))
        with pytest.raises(AgentBusyError, match="was resumed, so its session was not deleted"):
            forest.handle(DiscardSessions((id,)))


def test_deleted_agents_are_left_out_of_lists(capsys: pytest.CaptureFixture[str]) -> None:
    """A notice next to the list gives the numbers of the deleted agents as ranges."""
    assert format_ranges([1, 3, 4, 5, 8, 9]) == "1, 3-5, 8-9"
    rows = [{"seq": seq, "kind": "agent", "deleted": "2026" if seq != 2 else ""} for seq in range(1, 5)]
    assert [row["seq"] for row in without_deleted(rows)] == [2]
    assert capsys.readouterr().err == "orch: not shown, because their sessions were deleted: 1, 3-4\n"


async def ended(world: World, text: str = "first word") -> AsyncSubagent:
    """Return a killed agent that has answered one query and has one more answer in its script."""
    agent = await world.scripted(text, "second word")
    assert (await agent.query("?")).text == text
    await agent.kill()
    await until(lambda: not world.supervisor.tree.agents[agent.id].running)
    return agent


def answers(world: World) -> list[str]:
    """Return the answers that the journal contains."""
    lines = world.supervisor.run_events.path.read_bytes().splitlines()
    listed = [line for line in lines if b'"type":"query_finished"' in line]
    return [word for line in listed for word in ("first word", "second word", "kept") if word.encode() in line]


async def test_incomplete_fork_of_a_deleted_session_is_removed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A fork whose source is deleted while it is copied raises an error and leaves no folder."""
    ask, go = threading.Event(), threading.Event()

    def slow(*_: object) -> None:
        ask.set()
        go.wait()

    monkeypatch.setattr(fork, "_copy_stored_values", slow)
    async with opened(tmp_path) as world:
        first = await ended(world)
        copying = asyncio.create_task(first.session.fork())
        await until(ask.is_set)
        pruned = await world.sessions.prune(older=0)
        go.set()
        with pytest.raises(SessionDeletedError):
            await copying
        assert [row.id for row in pruned.sessions] == [first.id]
        assert list((tmp_path / "sessions").iterdir()) == []


async def test_deleted_session_leaves_only_its_number(tmp_path: Path) -> None:
    """Forks and kept sessions continue; the next root deletes the folder of a session that was in use."""
    sessions = tmp_path / "sessions"
    async with opened(tmp_path, run="mine") as world:
        first = await ended(world)
        copy = await first.session.fork()
        second, third = await ended(world), await ended(world, "kept")
        lock = FolderLock.acquire(sessions / second.id)
        planned = await world.sessions.prune(older=0, keep=1, dry_run=True)
        assert [row.seq for row in planned.sessions] == [1, 3]
        assert await world.sessions.prune(older="0s", keep=1) == planned
        lock.release()
        assert {path.name for path in sessions.iterdir()} == {copy.id, second.id, third.id}
        assert answers(world) == ["kept"]
        assert (await copy.query("?")).text == "second word"
    async with opened(tmp_path, run="mine") as world:
        assert {path.name for path in sessions.iterdir()} == {copy.id, third.id}
        assert world.supervisor.tree.agents.unremoved_folders == {}
        rows = await world.agents(all=True)
        assert [bool(row.deleted) for row in rows] == [True, False, True, False]
        gone, there = await world.get(first.id), await world.get(third.id)
        for ask in (
            gone.session.fork(),
            gone.resume(),
            gone.collect(),
            world.archives.search("x", ref=first.id),
        ):
            with pytest.raises(SessionDeletedError):
                await ask
        await there.resume()
        assert (await there.query("again?")).text == "second word"
        with pytest.raises(ConfigError, match="keep must be 0 or more"):
            await world.sessions.prune(older=0, keep=-1)


async def test_long_idle_agents_are_killed_and_deleted_when_configured(tmp_path: Path) -> None:
    """An idle agent that receives a query during the deletion is kept and answers."""
    async with opened(tmp_path, run="mine") as world:
        asleep, woken = [await world.scripted("a word", "more") for _ in range(2)]
    async with opened(tmp_path, run="mine") as world:
        assert (await world.sessions.prune(older=0)).sessions == ()
        planned = await world.sessions.prune(older=0, idle=True, dry_run=True)
        assert {row.id for row in planned.sessions} == {asleep.id, woken.id}
        agent = await world.get(woken.id)
        async with world.supervisor.holds.lock:
            pruning = asyncio.create_task(world.sessions.prune(older=0, idle=True))
            await asyncio.sleep(0)
            asked = asyncio.create_task(agent.query("?"))
            await until(lambda: world.supervisor.tree.agents[woken.id].running)  # it may have answered by now
        pruned = await pruning
        assert [row.id for row in pruned.sessions] == [asleep.id]
        assert "was not deleted: the agent received a query" in pruned.busy[woken.id]
        assert (await asked).text == "a word"
        with pytest.raises(SessionDeletedError):
            await (await world.get(asleep.id)).query("?")
