"""Forks: agents that begin with a copy of another agent's conversation up to an entry."""

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
from orch_worker.session.session_reader import read_session
from orchestrator.root_double import Gate, World, opened

AT_ONCE = Config(archival=replace(EAGER, async_=False))


async def spawned(o: World, *said: Any, **options: Any) -> AsyncSubagent:
    """Return an agent with the answers `said` and without a project description."""
    return await o.scripted(*said, context="none", **options)


def session(o: World, agent: AsyncSubagent) -> SessionState:
    """Return the agent's session as read from its file."""
    return read_session(Path(o.supervisor.tree.agents[agent.id].spec.folder))


def texts(o: World, agent: AsyncSubagent) -> list[str]:
    """Return the texts of the messages that the model is shown."""
    return [text_of(message).removeprefix("Task: work\n\nQuery: ") for message in session(o, agent).messages]


async def test_fork_and_source_are_independent(tmp_path: Path) -> None:
    """A fork gets a process with its first query, and its header names the source."""
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


async def test_fork_keeps_entry_ids_labels_and_title(tmp_path: Path) -> None:
    """Ids and labels of the source therefore name the same entries in the fork."""
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


async def test_fork_of_one_branch_excludes_the_others(tmp_path: Path) -> None:
    """The file of the fork contains only the path to the forked entry."""
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


async def test_fork_copies_archives(tmp_path: Path) -> None:
    """The copies have new ids, and can be read, searched and queried; a fork of the fork copies them again."""
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


async def test_fork_has_the_rights_of_its_source(tmp_path: Path) -> None:
    """The specs of a fork and its source differ only in id, number, name and folder."""
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


async def test_fork_with_another_model_records_it(tmp_path: Path) -> None:
    """The session of the fork records the new model, and the source keeps its model."""
    async with opened(tmp_path) as o:
        agent = await spawned(o, "one", cwd=tmp_path)
        await agent.query("first")
        copy = await agent.session.fork(model="extractive:")
        assert (await copy.session.tree()).model == "extractive"
        assert (await agent.session.tree()).model == "scripted"
        assert (await copy.query("What was said first?")).text
        assert (await copy.state()).model.startswith("extractive")


async def test_fork_during_a_turn_needs_an_entry(tmp_path: Path) -> None:
    """A fork without an entry is refused during a turn, because it would contain a part of the turn."""
    gate = Gate()
    async with opened(tmp_path) as o:
        agent = await spawned(o, "one", {"tool": "gate"}, "two", tools=[gate.tool()])
        await agent.query("first")
        point = (await agent.session.tree()).leaf
        asking = agent.submit("work on")
        await gate.called.wait()
        with pytest.raises(AgentBusyError, match="name the last entry"):
            await agent.session.fork()
        copy = await agent.session.fork(point)
        assert texts(o, copy) == ["first", "one"]
        gate.open.set()
        await asking


async def test_refused_fork_creates_nothing(tmp_path: Path) -> None:
    """A taken or invalid name, an unknown entry and an unknown model leave no agent and no folder."""
    async with opened(tmp_path) as o:
        agent = await spawned(o, "one", name="taken")
        await agent.query("first")
        folders = sorted(path.name for path in o.supervisor.sessions.iterdir())
        with pytest.raises(SpawnError, match="already has the name 'taken'"):
            await agent.session.fork(name="taken")
        with pytest.raises(ConfigError, match="invalid name"):
            await agent.session.fork(name="no name")
        with pytest.raises(EntryNotFoundError):
            await agent.session.fork("nowhere")
        with pytest.raises(ConfigError):
            await agent.session.fork(model="nobody:knows")
        assert sorted(path.name for path in o.supervisor.sessions.iterdir()) == folders
        assert len(o.supervisor.tree.agents) == 1


async def test_damaged_session_is_forked_without_the_damaged_entries(tmp_path: Path) -> None:
    """The fork has the entries before and after the damage, and the source is not changed."""
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
        data = [json.loads(line) for line in written.splitlines()]
        assert [line["s"] for line in data] == list(range(1, len(data) + 1))


async def test_fork_at_the_beginning_has_the_task(tmp_path: Path) -> None:
    """The first query of a fork at the beginning of the session contains the task."""
    async with opened(tmp_path) as o:
        agent = await spawned(o, "one", "two")
        await agent.query("first")
        copy = await agent.session.fork("root")
        await copy.query("anew")
        assert text_of(session(o, copy).messages[0]) == "Task: work\n\nQuery: anew"
