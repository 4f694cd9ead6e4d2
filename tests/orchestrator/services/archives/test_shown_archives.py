"""Recall knows the archives that the conversation shows: in lists, searches, reads, text files, and as holders."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from agent_history import EAGER, PROFILES
from orch import AsyncSubagent, Config, ScriptedBackend
from orch.policy.caller import AgentCaller
from orch.services.dispatch.call import call
from orch_protocol.core.errors import AgentNotFoundError
from orch_protocol.services.agents.lifecycle import KILL, Kill, Killed
from orchestrator.root_double import World, opened

ARCHIVED = Config(archival=replace(EAGER, async_=False))
MERGED = Config(archival=replace(PROFILES["tight"], async_=False))


async def merged(o: World, tools: tuple[str, ...] = ()) -> tuple[AsyncSubagent, list[str]]:
    """Return an agent after ten turns, some of which were merged, and the archives of the turns."""
    steps = [f"answer {number} " + f"valve{number} " * 60 for number in range(11)]
    agent = await o.spawn("work", backend=ScriptedBackend(steps), tools=list(tools))
    ids = [(await agent.query(f"ask {number}")).archived_to or "" for number in range(10)]
    return agent, [id for id in ids if id]


def texts(agent: AsyncSubagent, o: World) -> Path:
    """Return the folder with the texts of the agent's archives."""
    return Path(o.supervisor.tree.agents[agent.id].spec.folder) / "archives"


async def test_merged_archives_are_named_by_the_archive_that_the_conversation_shows(tmp_path: Path) -> None:
    """Lists and hits name shown archives only, and the entry of each hit contains the text."""
    async with opened(tmp_path, config=MERGED) as o:
        _, ids = await merged(o)
        rows = await o.archives.list()
        listed = {row.id for row in rows}
        (era,) = [row for row in rows if row.kind == "era"]
        gone = [id for id in ids if id not in listed]
        assert len(gone) >= 2
        for number in range(10):
            for hit in await o.archives.search(f"valve{number}"):
                assert hit.id in listed
                assert hit.turn == number + 1
                assert f"valve{number}" in str(await o.archives.read(hit.id, first=hit.entry, last=hit.entry))
        for id in gone:
            with pytest.raises(
                AgentNotFoundError, match=f"{id} was merged into archive {era.id}: read {era.id}, entries"
            ):
                await o.archives.read(id)
        assert "valve0" in (await (await o.get(gone[0])).query("valve0?")).text


async def test_given_archive_keeps_its_id_after_a_merge(tmp_path: Path) -> None:
    """An agent that got an archive finds and reads it under the id that it got."""
    async with opened(tmp_path, config=MERGED) as o:
        owner = await o.spawn("work", backend=ScriptedBackend([f"answer {n} " + f"valve{n} " * 60 for n in range(10)]))
        given = (await owner.query("ask 0")).archived_to or ""
        calls = [
            {"tool": "search_archive", "input": {"query": "valve0"}},
            {"tool": "read_archive", "input": {"id": given}},
        ]
        reader = await o.spawn(
            "read",
            backend=ScriptedBackend([{"tools": calls}, "Done."]),
            tools=["search_archive", "read_archive"],
            archives=[given],
        )
        for number in range(1, 10):
            await owner.query(f"ask {number}")
        assert given not in {row.id for row in await o.archives.list(owner.id)}
        await reader.query("go")
        shown = (texts(reader, o).parent / "session.jsonl").read_text()
        assert f"{given} entry " in shown
        assert "was merged" not in shown


async def test_texts_are_written_rebuilt_and_deleted_with_the_archives(tmp_path: Path) -> None:
    """There is a file for each archived turn and an index. Missing files are written before the next turn."""
    async with opened(tmp_path, config=MERGED) as o:
        agent, _ = await merged(o, ("read_file",))
        folder = texts(agent, o)
        names = sorted(path.name for path in folder.glob("*.txt"))
        assert names == ["index.txt", *(f"turn-{number:03d}.txt" for number in range(1, 11))]
        assert (folder / "turn-004.txt").read_text().startswith("[user]\nask 3\n\n[assistant]\nanswer 3 valve3")
        assert folder.stat().st_mode & 0o077 == 0
        listed = {row.id for row in await o.archives.list()}
        index = (folder / "index.txt").read_text().splitlines()[1:]
        assert {line.split()[1] for line in index} == listed
        (folder / "index.txt").unlink()
        (folder / "turn-004.txt").unlink()
        await agent.query("more")
        assert sorted(path.name for path in folder.glob("turn-*.txt"))[:10] == names[1:]
        await agent.kill()
        await o.archives.prune(older=0)
        assert not folder.exists() or "valve3" not in "".join(path.read_text() for path in folder.glob("*.txt"))


async def test_no_texts_for_agents_that_cannot_read_them(tmp_path: Path) -> None:
    """An agent without file tools and commands has no text files."""
    async with opened(tmp_path, config=ARCHIVED) as o:
        agent = await o.scripted("one", tools=[])
        assert (await agent.query("go")).archived_to
        assert not texts(agent, o).exists()


async def test_holders_are_listed_with_all_agents(tmp_path: Path) -> None:
    """A holder that was never queried has a row of its own, and a queried holder has one row too."""
    async with opened(tmp_path, config=ARCHIVED) as o:
        agent = await o.scripted("one", "two")
        holders = [(await agent.query(prompt)).archived_to for prompt in ("first", "second")]
        await (await o.get(holders[0] or "")).query("What was it?")
        rows = {row.id: row for row in await o.agents(all=True) if row.kind == "holder"}
        assert list(rows) == holders or set(rows) == set(holders)
        assert {row.parent_id for row in rows.values()} == {agent.id}
        assert rows[holders[1] or ""].status == "cold"
        assert rows[holders[1] or ""].task == "second"
        assert [row.id for row in await o.agents()] == [agent.id]


@pytest.mark.parametrize("queried", [False, True])
async def test_killed_holder_keeps_its_archive_and_answers_again(tmp_path: Path, queried: bool) -> None:
    """A kill ends the process of a holder that has one. The archive can be read and queried afterwards."""
    async with opened(tmp_path, config=ARCHIVED) as o:
        agent = await o.scripted("valve one")
        holder = (await agent.query("go")).archived_to or ""
        if queried:
            await (await o.get(holder)).query("What was it?")
        killed: Any = await o.kill(holder)
        assert killed == ((holder,) if queried else ())
        assert len(await o.archives.read(holder)) == 2
        assert "valve one" in (await (await o.get(holder)).query("valve?")).text


async def test_agent_lists_and_kills_its_own_holders(tmp_path: Path) -> None:
    """The model sees the number of holders. A kill names the archive that stays."""
    async with opened(tmp_path, config=ARCHIVED) as o:
        look = {"tool": "list_subagents", "input": {}}
        agent = await o.spawn(
            "work",
            backend=ScriptedBackend(["one", look, "Done."]),
            tools=["list_subagents", "kill_subagent"],
        )
        holder = (await agent.query("go")).archived_to or ""
        await agent.query("list")
        said = (texts(agent, o).parent / "session.jsonl").read_text()
        assert f"1 holder of archived turns (latest: {holder})" in said
        killed = await call(o.supervisor, AgentCaller(agent.id), KILL, Kill((holder,)))
        assert killed == Killed((), (holder,))
        assert len(await o.archives.read(holder)) == 2
