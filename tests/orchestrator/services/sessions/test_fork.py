"""Agents made of other agents: the same conversation up to a place, and two ways from there."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from agent_history import EAGER
from orch import AsyncSubagent, Config
from orch_protocol.core.errors import AgentBusyError, ConfigError, EntryNotFoundError, SpawnError
from orch_protocol.core.messages import text_of
from orch_protocol.session.entries import SessionHeader
from orch_worker.conversation.stubs import holders_in
from orch_worker.session.session import SessionState
from orch_worker.session.transcript import read_session
from orchestrator.root_double import Gate, World, opened

AT_ONCE = Config(archival=replace(EAGER, async_=False))


async def spawned(o: World, *said: Any, **options: Any) -> AsyncSubagent:
    """Return an agent that says that, and is told of no project."""
    return await o.scripted(*said, context="none", **options)


def session(o: World, agent: AsyncSubagent) -> SessionState:
    """Return what the agent's file says."""
    return read_session(Path(o.supervisor.tree.agents[agent.id].spec.folder))


def texts(o: World, agent: AsyncSubagent) -> list[str]:
    """Return what the model is shown."""
    return [text_of(message).removeprefix("Task: work\n\nQuery: ") for message in session(o, agent).messages]


async def test_both_go_their_own_way(tmp_path: Path) -> None:
    """The copy has the path and nothing else, says whose it is, and starts when it is asked; the other is as it was."""
    async with opened(tmp_path) as o:
        agent = await spawned(o, "one", "two", "three")
        await agent.query("first")
        point = (await agent.session.tree()).leaf
        await agent.query("second")
        copy = await agent.session.fork(point, name="other")
        assert (copy.name, o.status(copy), copy.pid) == ("other", "cold", None)
        assert (await copy.session.tree()).leaf == point
        header = session(o, copy).header
        assert isinstance(header, SessionHeader)
        assert (header.parent_session, header.agent) == (agent.id, copy.id)
        before = texts(o, agent)
        assert (await copy.query("another")).text == "two"
        assert texts(o, copy) == ["first", "one", "another", "two"]
        assert texts(o, agent) == before == ["first", "one", "second", "two"]
        assert (await agent.query("third")).text == "three"


async def test_entries_are_called_the_same(tmp_path: Path) -> None:
    """So a place of the one is found in the other, by id and by label; labels and title come along."""
    async with opened(tmp_path) as o:
        agent = await spawned(o, "one", "two")
        await agent.query("first")
        asked = (await agent.session.tree()).entries[0].id
        point = (await agent.session.tree()).leaf
        await agent.query("second")
        await agent.session.label(asked, "start")
        await agent.session.title("pumps")
        copy = await agent.session.fork(point)
        shown = await copy.session.tree()
        assert (shown.labels, shown.title, shown.parent_session) == ({asked: "start"}, "pumps", agent.id)
        assert await copy.session.branch("start") == "first"
        assert texts(o, copy) == []


async def test_of_one_branch_nothing_of_another(tmp_path: Path) -> None:
    """The copy is one path; what is not on it stays where it is."""
    async with opened(tmp_path) as o:
        agent = await spawned(o, "one", "two", "three")
        await agent.query("first")
        point = (await agent.session.tree()).leaf
        await agent.query("the dead end")
        left = (await agent.session.tree()).leaf
        await agent.session.checkout(point)
        await agent.query("another")
        copy = await agent.session.fork()
        folder = Path((await copy.state()).folder)
        assert b"dead end" not in (folder / "session.jsonl").read_bytes()
        assert texts(o, copy) == ["first", "one", "another", "three"]
        assert texts(o, await agent.session.fork(left)) == ["first", "one", "the dead end", "two"]


async def test_archives_come_along(tmp_path: Path) -> None:
    """Each is the copy's own: read, searched and asked there, also when the other has gone back before it."""
    async with opened(tmp_path, config=AT_ONCE) as o:
        agent = await spawned(o, "the copper valve " * 20, "the iron pump " * 20, "three")
        await agent.query("first")
        await agent.query("second")
        held = [await o.archives.read(row.id) for row in await o.archives.list(agent.id)]
        copy = await agent.session.fork()
        rows = await o.archives.list(copy.id)
        assert [row.owner for row in rows] == [copy.id] * 2
        assert not {row.id for row in rows} & {row.id for row in await o.archives.list(agent.id)}
        assert [await o.archives.read(row.id) for row in rows] == held
        shown = [holder for message in session(o, copy).messages for holder in holders_in(message)]
        assert shown == [row.id for row in rows]
        assert [hit.id for hit in await o.archives.search("copper valve", ref=copy.id) if hit.exact] == [rows[0].id]
        assert "copper" in (await (await o.get(rows[0].id)).query("What valve?")).text
        await agent.session.checkout(None)
        assert [await o.archives.read(row.id) for row in rows] == held
        (first, _) = rows
        point = next(row.id for row in (await copy.session.tree()).entries if row.type == "archive")
        again = await copy.session.fork(point)
        (only,) = await o.archives.list(again.id)
        assert await o.archives.read(only.id) == await o.archives.read(first.id)


async def test_it_may_do_what_the_other_may(tmp_path: Path) -> None:
    """The same tools, those of the program too; below the same agent, and as local as that one is."""
    gate = Gate()
    gate.open.set()
    async with opened(tmp_path) as o:
        agent = await spawned(o, "one", {"tool": "gate"}, "opened", tools=[gate.tool()], max_cost=None)
        await agent.query("first")
        copy = await agent.session.fork()
        one, two = (o.supervisor.tree.agents[each.id].spec for each in (agent, copy))
        same = replace(two, id=one.id, seq=one.seq, name=one.name, folder=one.folder)
        assert same == one
        assert (await copy.query("go")).text == "opened"
        assert gate.calls == 1


async def test_another_model_is_on_record(tmp_path: Path) -> None:
    """From where it answers; what there was before stays the other one's."""
    async with opened(tmp_path) as o:
        agent = await spawned(o, "one")
        await agent.query("first")
        copy = await agent.session.fork(model="extractive:")
        assert (await copy.session.tree()).model == "extractive"
        assert (await agent.session.tree()).model == "scripted"
        assert (await copy.query("What was said first?")).text
        assert (await copy.state()).model.startswith("extractive")


async def test_while_a_turn_runs_a_place_is_named(tmp_path: Path) -> None:
    """Half a turn is copied by nobody who does not ask for it."""
    gate = Gate()
    async with opened(tmp_path) as o:
        agent = await spawned(o, "one", {"tool": "gate"}, "two", tools=[gate.tool()])
        await agent.query("first")
        point = (await agent.session.tree()).leaf
        asking = agent.submit("work on")
        await gate.called.wait()
        with pytest.raises(AgentBusyError, match="name the entry"):
            await agent.session.fork()
        copy = await agent.session.fork(point)
        assert texts(o, copy) == ["first", "one"]
        gate.open.set()
        await asking


async def test_what_is_refused_leaves_nothing_behind(tmp_path: Path) -> None:
    """No agent, no folder."""
    async with opened(tmp_path) as o:
        agent = await spawned(o, "one", name="taken")
        await agent.query("first")
        folders = sorted(path.name for path in o.supervisor.sessions.iterdir())
        with pytest.raises(SpawnError, match="'taken' is taken"):
            await agent.session.fork(name="taken")
        with pytest.raises(ConfigError, match="does not do"):
            await agent.session.fork(name="no name")
        with pytest.raises(EntryNotFoundError):
            await agent.session.fork("nowhere")
        with pytest.raises(ConfigError):
            await agent.session.fork(model="nobody:knows")
        assert sorted(path.name for path in o.supervisor.sessions.iterdir()) == folders
        assert len(o.supervisor.tree.agents) == 1


async def test_a_damaged_session_is_copied_as_far_as_it_goes(tmp_path: Path) -> None:
    """What was wrong is told; the file it is from is only read."""
    async with opened(tmp_path) as o:
        agent = await spawned(o, "one", "two")
        await agent.query("first")
        await agent.query("second")
        path = Path((await agent.state()).folder) / "session.jsonl"
        lines = path.read_bytes().splitlines(keepends=True)
        at = next(number for number, line in enumerate(lines) if b'"text":"one"' in line)
        lines[at] = lines[at].replace(b'"one"', b'"ONE"')
        path.write_bytes(b"".join(lines))
        copy = await agent.session.fork()
        assert texts(o, copy) == ["first\n\nsecond", "two"]
        assert "checksum" in (await copy.state()).repaired
        assert path.read_bytes() == b"".join(lines)
        written = (Path((await copy.state()).folder) / "session.jsonl").read_text()
        told = [json.loads(line) for line in written.splitlines()]
        assert [line["s"] for line in told] == list(range(1, len(told) + 1))


async def test_a_copy_of_nothing_begins_anew(tmp_path: Path) -> None:
    """With the task, as the other did."""
    async with opened(tmp_path) as o:
        agent = await spawned(o, "one", "two")
        await agent.query("first")
        copy = await agent.session.fork("root")
        await copy.query("anew")
        assert text_of(session(o, copy).messages[0]) == "Task: work\n\nQuery: anew"
