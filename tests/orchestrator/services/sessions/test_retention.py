"""Sessions of agents that were killed long ago are deleted for good: which, and what is left."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path

import pytest

from orch import AsyncSubagent
from orch.cli.command import format_ranges, without_deleted
from orch.services.sessions import fork
from orch.services.sessions.retention import over_since
from orch.tree.agents.state import TreeState
from orch.tree.journal.entries import ContentDeleted, Snapshot
from orch.tree.journal.events import (
    ChangeModel,
    ChangeTitle,
    CollectReply,
    DiscardSession,
    KillRequested,
    LocalOnlyRequested,
    QueueSteering,
    ResumeRequested,
    StartQuery,
)
from orch.tree.rules.deletions import redacted
from orch_protocol.agent.models import RecordModel
from orch_protocol.agent.spec import BackendSpec
from orch_protocol.core.errors import AgentBusyError, ConfigError, SessionDeletedError
from orch_worker.session.log.lock import FolderLock
from orchestrator.root_double import World, opened
from orchestrator.tree.rules.test_deletions import SECRET, Past, told
from orchestrator.tree_double import Forest
from virtual_clock import until


def killed(forest: Forest, id: str) -> str:
    """Let the agent and all below it be killed, and their processes be over."""
    forest.handle(KillRequested((id,), "the user", {}))
    for node in list(forest.tree.agents):
        if node.running and node.status == "killed":
            forest.gone(node.spec.id)
    return id


def over(forest: Forest, before: float = 1000.0, *, keep: int = 0, idle: bool = False) -> list[str]:
    return sorted(node.spec.id for node in over_since(forest.tree.agents, before, keep=keep, idle=idle))


class TestWhich:
    """Those that are over, with all below them, for long enough."""

    def test_those_that_were_killed_and_not_touched_since(self) -> None:
        """Not one that lives, that is young, of which nothing is kept, or that is deleted already."""
        forest = Forest(max_concurrent=9)
        forest.spawn()
        killed(forest, forest.spawn(persist=False))
        old, gone = killed(forest, forest.spawn()), killed(forest, forest.spawn())
        forest.now += 10
        young = killed(forest, forest.spawn())
        assert over(forest) == [old, gone]
        forest.handle(DiscardSession(gone))
        assert (over(forest), over(forest, 1010.0)) == ([old], [old, young])

    def test_those_that_nobody_ended_and_nobody_asked_go_where_that_is_wanted(self) -> None:
        """Not one that has a process or something to do, and none above it."""
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

    def test_nobody_is_ended_above_whom_one_is_to_be_kept(self) -> None:
        """That would end the one that is kept, too; below one that was killed it has been already."""
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

    def test_one_below_which_something_is_not_over_stays(self) -> None:
        """A child that was resumed, or an archive that somebody has asked since."""
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
    """What the tree and the journal tell of one."""

    def test_nothing_is_told_of_what_was_said(self) -> None:
        """Nor of its archives; what is folded is the same tree, also when it was kept in short before."""
        past = Past(warm=False)
        past.handle(ChangeTitle(past.agent, SECRET))
        for script in ({"items": [SECRET], "context": 7}, {"items": [f"{SECRET}!"]}):
            past.handle(ChangeModel(past.agent, RecordModel(BackendSpec("scripted", options=script), "scripted")))
        past.handle(LocalOnlyRequested(past.agent, BackendSpec("scripted", options={"items": [SECRET]})))
        killed(past, past.agent)
        short = past.tree.agents.kept(1000.0)
        past.handle(DiscardSession(past.agent))
        for journal in (past.journal, [*short, past.journal[-1]]):
            after = redacted(journal)
            assert [type(entry) for entry in after] == [type(entry) for entry in journal]
            assert not told(after)
            assert not [
                entry for entry in after if isinstance(entry, Snapshot) and SECRET.encode() in bytes(entry.state)
            ]
            assert TreeState(after).by_id == past.tree.agents.by_id
            assert TreeState(after).going == past.tree.agents.going == {past.agent: "/nowhere"}
            assert all(one is two for one, two in zip(after, redacted(after), strict=True))
        past.write([ContentDeleted(at=1000.0, id=past.agent, session="gone")])
        assert TreeState(redacted(past.journal)).going == {}

    def test_who_asks_for_it_is_told_when_it_was_deleted(self) -> None:
        """Its number and what it used are left; its name is free."""
        forest = Forest(max_concurrent=9)
        id = forest.spawn(name="reader")
        forest.ask(id)
        forest.finish(id)
        killed(forest, id)
        forest.handle(DiscardSession(id))
        for event in (
            StartQuery(id, "q2", "?"),
            CollectReply(id, "the user"),
            QueueSteering(id, "s", "x"),
            ResumeRequested(id),
            DiscardSession(id),
        ):
            with pytest.raises(SessionDeletedError, match=r"of agent 'reader' \(a001\) was deleted on 1970-01-01"):
                forest.handle(event)
        assert (forest.tree.agents[id].usage.cost_usd, forest.tree.agents.by_id.at(1)) == (0.5, forest.tree.agents[id])
        forest.spawn(name="reader")

    def test_one_that_has_a_process_stays(self) -> None:
        """Whoever was resumed since it was chosen is not deleted."""
        forest = Forest()
        id = forest.spawn()
        with pytest.raises(AgentBusyError, match="has a process: its session stays"):
            forest.handle(DiscardSession(id))
        killed(forest, id)
        forest.handle(ResumeRequested(id))
        with pytest.raises(AgentBusyError, match="was resumed: its session stays"):
            forest.handle(DiscardSession(id))


def test_numbers_are_told_in_few_words(capsys: pytest.CaptureFixture[str]) -> None:
    """Those that were deleted are left out of a list."""
    assert format_ranges([1, 3, 4, 5, 8, 9]) == "1, 3-5, 8-9"
    rows = [{"seq": seq, "kind": "agent", "deleted": "2026" if seq != 2 else ""} for seq in range(1, 5)]
    assert [row["seq"] for row in without_deleted(rows)] == [2]
    assert capsys.readouterr().err == "orch: sessions of these were deleted: 1, 3-4\n"


async def ended(world: World, said: str = "first word") -> AsyncSubagent:
    """Return an agent that said something, would say more, and was killed."""
    agent = await world.scripted(said, "second word")
    assert (await agent.query("?")).text == said
    await agent.kill()
    await until(lambda: not world.supervisor.tree.agents[agent.id].running)
    return agent


def answers(world: World) -> list[str]:
    """Return what was answered, as far as the journal tells it."""
    lines = world.supervisor.happenings.path.read_bytes().splitlines()
    said = [line for line in lines if b'"type":"query_finished"' in line]
    return [word for line in said for word in ("first word", "second word", "kept") if word.encode() in line]


async def test_a_copy_that_was_not_whole_when_it_was_deleted_is_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nor is anything of it left: not all that it names was there any more."""
    ask, go = threading.Event(), threading.Event()

    def slow(*_: object) -> None:
        ask.set()
        go.wait()

    monkeypatch.setattr(fork, "_belongings", slow)
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


async def test_nothing_of_it_is_left_but_its_number(tmp_path: Path) -> None:
    """Neither session nor log nor a word in the journal; a copy of it, and the one that is kept, go on. What somebody
    has open just then is taken away by the next root."""
    sessions = tmp_path / "sessions"
    async with opened(tmp_path, run="mine") as world:
        first = await ended(world)
        copy = await first.session.fork()
        second, third = await ended(world), await ended(world, "kept")
        planned = await world.sessions.prune(older=0, keep=1, dry_run=True)
        assert [row.seq for row in planned.sessions] == [1, 3]
        lock = FolderLock.acquire(sessions / second.id)
        assert await world.sessions.prune(older="0s", keep=1) == planned
        lock.release()
        assert {path.name for path in sessions.iterdir()} == {copy.id, second.id, third.id}
        assert answers(world) == ["kept"]
        assert (await copy.query("?")).text == "second word"
    async with opened(tmp_path, run="mine") as world:
        assert {path.name for path in sessions.iterdir()} == {copy.id, third.id}
        assert world.supervisor.tree.agents.going == {}
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
        with pytest.raises(ConfigError, match="cannot be kept"):
            await world.sessions.prune(older=0, keep=-1)


async def test_what_nobody_asked_for_long_is_ended_and_deleted_where_that_is_wanted(tmp_path: Path) -> None:
    """It has no process by then; one that somebody wakes meanwhile stays, and its answer is given."""
    async with opened(tmp_path, run="mine") as world:
        asleep, woken = [await world.scripted("a word", "more") for _ in range(2)]
    async with opened(tmp_path, run="mine") as world:
        assert (await world.sessions.prune(older=0)).sessions == ()
        planned = await world.sessions.prune(older=0, idle=True, dry_run=True)
        assert {row.id for row in planned.sessions} == {asleep.id, woken.id}
        agent = await world.get(woken.id)
        async with world.supervisor.holds.turn:
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
