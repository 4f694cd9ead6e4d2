"""`forget`: deletion of a session, of its archives and of its subagents' sessions from all files."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from agent_history import EAGER
from orch import AsyncSubagent, Config, SubagentsConfig
from orch.policy.caller import AgentCaller
from orch.services import call
from orch.services.sessions import deletion
from orch_protocol.core.errors import (
    AgentBusyError,
    AgentNotFoundError,
    ArchiveDeletedError,
    ConfigError,
    OrchError,
    SessionDeletedError,
    StoreError,
)
from orch_protocol.services.agents.spawn import SPAWN, Spawn
from orch_worker.session.log.lock import FolderLock
from orchestrator.root_double import NEST, Gate, World, opened
from virtual_clock import until

SECRET = "quaxifrage"
ARCHIVING = Config(archival=replace(EAGER, async_=False))


def telling(home: Path, secret: str = SECRET) -> list[str]:
    """Return the names of the files below `home` that contain the secret, as text or as a word of a search index."""
    files = [path for path in home.rglob("*") if path.is_file() and path.name != "copy.jsonl"]  # of World.refolded()
    return [path.name for path in files if secret.encode() in _content(path) or secret in _indexed(path)]


def _content(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except FileNotFoundError:  # the root deletes files at the same time
        return b""


def _indexed(path: Path) -> Iterator[str]:
    if path.name != "index.sqlite":
        return
    with sqlite3.connect(path) as database:
        database.execute("CREATE VIRTUAL TABLE temp.terms USING fts5vocab('main', 'words', 'row')")
        yield from (term for (term,) in database.execute("SELECT term FROM temp.terms"))


async def archived(world: World, secret: str = SECRET) -> tuple[AsyncSubagent, str]:
    """Return an agent whose first turn contains the secret, and the archive of that turn."""
    agent = await world.scripted(f"It is {secret}.", "No more.", name=f"knows-{len(secret)}")
    holder = (await agent.query(f"what is {secret}?")).archived_to or ""
    await agent.query("and now?")
    await world.archives.search(secret)
    return agent, holder


async def ended_agent(world: World) -> AsyncSubagent:
    """Return an agent that answered one query and whose process has ended."""
    agent = await world.scripted(SECRET)
    await agent.query("?")
    await agent.kill()
    await until(lambda: not world.supervisor.tree.agents[agent.id].running)
    return agent


async def test_no_file_tells_of_a_forgotten_session(tmp_path: Path) -> None:
    """Transcripts, archives, search index, log and journal lose the content; the agent keeps its number and name."""
    async with opened(tmp_path, run="mine", config=ARCHIVING) as world:
        agent, holder = await archived(world)
        other, _ = await archived(world, "persimmon")
        await (await world.get(holder)).query(f"{SECRET}?")
        assert {"journal.jsonl", "session.jsonl"} <= set(telling(tmp_path))
        planned = await world.sessions.forget(agent.id, dry_run=True)
        assert {"journal.jsonl", "session.jsonl"} <= set(telling(tmp_path))
        forgotten = await world.sessions.forget("knows-10")
        assert (forgotten, forgotten.archives) == (planned, 2)
        assert [row.id for row in forgotten.sessions] == [agent.id]
        assert telling(tmp_path) == []
        assert {path.name for path in (tmp_path / "sessions").iterdir()} == {other.id}
        assert await world.archives.search(SECRET) == []
        assert len(await world.archives.search("persimmon")) > 0
        for refused in (agent.query("?"), world.sessions.forget(agent.id), world.sessions.open(agent.id)):
            with pytest.raises(SessionDeletedError):
                await refused
        with pytest.raises(ArchiveDeletedError):
            await world.archives.read(holder)
    async with opened(tmp_path, run="mine", config=ARCHIVING) as world:
        rows = [row for row in await world.agents(all=True) if not row.deleted]
        assert [row.id for row in rows if row.kind == "agent"] == [other.id]
        assert {row.parent_id for row in rows if row.kind == "holder"} == {other.id}
        assert telling(tmp_path) == []


async def test_sessions_below_are_forgotten_too(tmp_path: Path) -> None:
    """The sessions of subagents contain tasks and texts of their parent's session."""
    config = Config(subagents=SubagentsConfig(allow_nested=True))
    async with opened(tmp_path, config=config) as world:
        spawn = {"tool": "spawn_subagent", "input": {"task": f"look for {SECRET}"}}
        top = await world.scripted(spawn, "Spawned.", tools=NEST, name="top")
        await top.query("go")
        forgotten = await world.sessions.forget("top")
        assert [row.title for row in forgotten.sessions] == ["work", f"look for {SECRET}"]
        assert telling(tmp_path) == []
        assert list((tmp_path / "sessions").iterdir()) == []


async def test_busy_agent_is_not_forgotten(tmp_path: Path) -> None:
    """`forget` raises AgentBusyError and changes nothing, also as a dry run; after the turn, it succeeds."""
    config, gate = Config(subagents=SubagentsConfig(allow_nested=True)), Gate()
    async with opened(tmp_path, config=config) as world:
        world.register_tool(gate.tool())
        top = await world.scripted("one", tools=[*NEST, "gate"], name="top")
        spawned = Spawn("t", name="busy", script=({"tool": "gate", "input": {}}, "two"))
        busy = await world.get((await call(world.supervisor, AgentCaller(top.id), SPAWN, spawned)).id)
        asked = asyncio.create_task(busy.query("go"))
        await gate.called.wait()
        for dry_run in (True, False):
            with pytest.raises(AgentBusyError, match=r"agent 'busy' \(.*\) is at work: go"):
                await world.sessions.forget(busy.id, dry_run=dry_run)
            with pytest.raises(AgentBusyError, match=r"agent 'busy' \(.*\) is at work: go"):
                await world.sessions.forget(top.id, dry_run=dry_run)
        gate.open.set()
        assert (await asked).text == "two"
        assert (await top.query("?")).text == "one"
        assert (await world.sessions.forget(busy.id)).sessions[0].id == busy.id


async def test_agents_without_a_process_are_forgotten(tmp_path: Path) -> None:
    """An agent of an earlier root, which has no process, can also be forgotten."""
    async with opened(tmp_path, run="mine") as world:
        killed, cold = await world.scripted(SECRET), await world.scripted(SECRET)
        await killed.query("?")
        await killed.kill()
        await cold.query("?")
        await until(lambda: not world.supervisor.tree.agents[killed.id].running)
        await world.sessions.forget(killed.id)
    async with opened(tmp_path, run="mine") as world:
        await world.sessions.forget(cold.id)
        assert telling(tmp_path) == []


async def test_folder_in_use_is_reported(tmp_path: Path) -> None:
    """The deletion is recorded, and the next opening of the run removes the folder."""
    async with opened(tmp_path, run="mine") as world:
        agent = await ended_agent(world)
        lock = FolderLock.acquire(tmp_path / "sessions" / agent.id)
        with pytest.raises(StoreError, match=r"was deleted, but its folder .* is in use"):
            await world.sessions.forget(agent.id)
        lock.release()
    async with opened(tmp_path, run="mine"):
        assert telling(tmp_path) == []


async def test_session_of_a_closed_run_is_forgotten(tmp_path: Path) -> None:
    """The session's folder and journal entries are deleted; sessions of a run that is open elsewhere are refused."""
    async with opened(tmp_path, run="past", config=ARCHIVING) as world:
        agent, _ = await archived(world)
        there, _ = await archived(world, "persimmon")
    async with opened(tmp_path, run="now") as world:
        planned = await world.sessions.forget(agent.id, dry_run=True)
        assert telling(tmp_path) != []
        assert await world.sessions.forget(agent.id) == planned
        assert (planned.sessions[0].name, planned.archives) == ("knows-10", 2)
        assert telling(tmp_path) == []
        with pytest.raises(AgentNotFoundError):
            await world.sessions.forget(agent.id)
        async with opened(tmp_path, run="past", config=ARCHIVING) as past:
            with pytest.raises(SessionDeletedError):
                await (await past.get(agent.id)).query("?")
            with pytest.raises(AgentBusyError, match="belongs to the open run 'past'"):
                await world.sessions.forget(there.id)
            assert len(await past.archives.search("persimmon")) > 0


async def test_session_of_no_run_is_forgotten(tmp_path: Path) -> None:
    """Programs without a named run leave such sessions; the folder must be below `sessions`."""
    async with opened(tmp_path) as world:
        agent = await world.scripted(SECRET)
        await agent.query("?")
    async with opened(tmp_path, run="now") as world:
        folder = tmp_path / "sessions" / agent.id
        elsewhere = tmp_path / "elsewhere"
        folder.rename(elsewhere)
        with pytest.raises(ConfigError, match=r"is not below .*sessions"):
            await world.sessions.forget(elsewhere)
        elsewhere.rename(folder)
        assert [row.id for row in (await world.sessions.forget(folder)).sessions] == [agent.id]
        assert telling(tmp_path) == []


async def test_damaged_session_is_forgotten(tmp_path: Path) -> None:
    """A session whose file cannot be read can be deleted."""
    async with opened(tmp_path, run="mine") as world:
        agent = await ended_agent(world)
        path = tmp_path / "sessions" / agent.id / "session.jsonl"
        path.write_bytes(b"{" + path.read_bytes()[40:])
        await world.sessions.forget(agent.id)
        assert telling(tmp_path) == []


async def test_cancelled_call_completes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A `forget` whose caller stops waiting still deletes the whole session."""
    begun = asyncio.Event()
    stop_processes = deletion.stop_processes

    async def stopping(*arguments: Any) -> None:
        begun.set()
        await stop_processes(*arguments)

    monkeypatch.setattr(deletion, "stop_processes", stopping)
    async with opened(tmp_path) as world:
        agent = await world.scripted(SECRET)
        await agent.query("?")
        forgetting = asyncio.create_task(world.sessions.forget(agent.id))
        await begun.wait()
        forgetting.cancel()
        await until(lambda: telling(tmp_path) == [])
        with pytest.raises(OrchError):
            await agent.query("?")
