"""Archives are deleted by id: their text is in no file afterwards, and other archives stay."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from msgspec.structs import replace

from agent_history import EAGER, PROFILES
from orch import AsyncSubagent, Config, ScriptedBackend
from orch_protocol.core.errors import (
    AgentBusyError,
    AgentNotFoundError,
    ArchiveDeletedError,
    ConfigError,
    OrchError,
)
from orchestrator.root_double import Gate, World, opened

ARCHIVED = Config(archival=replace(EAGER, async_=False))
MERGED = Config(archival=replace(PROFILES["tight"], async_=False))


async def archives(o: World, *words: str) -> tuple[AsyncSubagent, list[str]]:
    """Return an agent that answered with `words`, one turn each, and the archives of the turns."""
    agent = await o.spawn("work", backend=ScriptedBackend([f"{word} " * 60 for word in words]))
    return agent, [(await agent.query("go")).archived_to or "" for _ in words]


def files_with(home: Path, word: str) -> list[Path]:
    """Return the files that contain `word`."""
    return [path for path in home.rglob("*") if path.is_file() and word.encode() in path.read_bytes()]


async def test_deleted_archive_leaves_no_text_and_the_others_stay(tmp_path: Path) -> None:
    """The result names the deleted archive, and a later use reports the deletion."""
    async with opened(tmp_path, config=ARCHIVED) as o:
        agent, (first, second) = await archives(o, "quaxifrage", "bramblewick")
        before = (await agent.show()).messages
        [row] = [row for row in await o.archives.list() if row.id == second]
        planned = await o.archives.delete(second, dry_run=True)
        assert [each.id for each in planned.archives] == [second]
        assert await o.archives.search("bramblewick")
        assert files_with(tmp_path / "sessions", "bramblewick " * 59)
        assert await o.archives.delete(second[:8]) == planned
        assert planned.archives == (row,)
        assert [each.id for each in await o.archives.list()] == [first]
        assert await o.archives.search("bramblewick") == []
        assert "quaxifrage" in str(await o.archives.read(first))
        assert files_with(tmp_path / "sessions", "bramblewick " * 59) == []
        assert (await agent.show()).messages == before
        for again in (o.archives.read(second), o.archives.delete(second), o.archives.delete(first, second)):
            with pytest.raises(ArchiveDeletedError, match=second):
                await again
        assert await o.archives.read(first)


async def test_archives_of_several_agents_are_deleted_together(tmp_path: Path) -> None:
    """The result has the archives of all agents."""
    async with opened(tmp_path, config=ARCHIVED) as o:
        _, ids = await archives(o, "quaxifrage")
        _, others = await archives(o, "bramblewick", "thistledown")
        deleted = await o.archives.delete(ids[0], others[1])
        assert {row.id for row in deleted.archives} == {ids[0], others[1]}
        assert [row.id for row in await o.archives.list()] == [others[0]]


async def test_merged_archives_are_deleted_with_their_era_or_alone(tmp_path: Path) -> None:
    """The messages of a merged archive are deleted under its own id; those of the others stay readable."""
    async with opened(tmp_path, config=MERGED) as o:
        _, ids = await archives(o, *(f"valve{number}" for number in range(11)))
        rows = await o.archives.list()
        [era] = [row for row in rows if row.kind == "era"]
        alone, other = [id for id in ids if id not in {row.id for row in rows}][:2]
        number = ids.index(alone)
        assert f"valve{number} " in str(await o.archives.read(era.id))
        assert [row.id for row in (await o.archives.delete(alone)).archives] == [alone]
        left = str(await o.archives.read(era.id))
        assert f"valve{number} " not in left
        assert f"valve{ids.index(other)} " in left
        deleted = {row.id for row in (await o.archives.delete(era.id)).archives}
        assert {era.id, other} <= deleted
        assert alone not in deleted


async def test_questions_to_an_era_are_deleted_with_a_merged_archive(tmp_path: Path) -> None:
    """The era's holder quoted the archive. Later it answers from the others, and its new questions stay."""
    async with opened(tmp_path, config=MERGED) as o:
        _, ids = await archives(o, *(f"valve{number}" for number in range(11)))
        rows = await o.archives.list()
        [era] = [row for row in rows if row.kind == "era"]
        first, second = [id for id in ids if id not in {row.id for row in rows}][:2]
        holder, word = await o.get(era.id), f"valve{ids.index(first)}"
        assert word in (await holder.query(f"Where is {word}, quaxifrage?")).text
        assert (await o.archives.delete(first)).archives
        assert files_with(tmp_path, "quaxifrage") == []
        assert files_with(tmp_path / "sessions", f"{word} {word}") == []
        result = o.supervisor.tree.agents[era.id].last
        assert result is not None
        assert result.reply is not None
        assert result.reply.text.startswith("[deleted on ")
        await holder.query("Where is bramblewick?")
        assert f"{word} {word}" not in str((await holder.show()).messages)
        await o.archives.delete(next(row.id for row in rows if row.kind == "turn"))
        assert files_with(tmp_path / "sessions", "bramblewick")
        await o.archives.delete(second)
        assert files_with(tmp_path / "sessions", "bramblewick") == []


@pytest.mark.parametrize(
    ("ids", "error"),
    [
        ((), ConfigError),
        (("ffffffff",), AgentNotFoundError),
        (("",), ConfigError),
        (("a",), OrchError),
        ((7,), ConfigError),
    ],
)
async def test_nothing_is_deleted_if_an_id_is_invalid(
    tmp_path: Path, ids: tuple[str, ...], error: type[OrchError]
) -> None:
    """The ids are checked before the first deletion."""
    async with opened(tmp_path, config=ARCHIVED) as o:
        _, known = await archives(o, "quaxifrage")
        with pytest.raises(error):
            await o.archives.delete(*(known if ids else ()), *ids)
        assert [row.id for row in await o.archives.list()] == known


async def test_archives_of_a_working_agent_stay(tmp_path: Path) -> None:
    """While an agent is at work, the deletion fails, also that of another agent's archive in the same call."""
    async with opened(tmp_path, config=ARCHIVED) as o:
        gate = Gate()
        o.register_tool(gate.tool())
        steps = ["quaxifrage " * 60, {"tool": "gate", "input": {}}, "done"]
        agent = await o.spawn("work", backend=ScriptedBackend(steps), tools=["gate"])
        ids = [(await agent.query("go")).archived_to or ""]
        _, others = await archives(o, "bramblewick")
        asked = asyncio.create_task(agent.query("go on"))
        await gate.called.wait()
        with pytest.raises(AgentBusyError, match=r"nothing was deleted: .*is at work: go on"):
            await o.archives.delete(*others, *ids)
        assert {row.id for row in await o.archives.list()} == {*ids, *others}
        gate.open.set()
        await asked
        assert len((await o.archives.delete(*others, *ids)).archives) == 2
