"""Archives of running agents are deleted: their text is in no file afterwards, and the agents continue."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest

from integration.worlds import AND_PROCESSES, Open, worlds
from orch import ArchivalConfig, AsyncOrchestrator, AsyncSubagent, Config, ScriptedBackend
from orch_protocol.agent.config import TriggerConfig
from orch_protocol.core.errors import AgentNotFoundError, ArchiveDeletedError, ConfigError, StoreError
from orch_protocol.core.messages import text_of
from orch_worker.session.log import atomic_rewrite
from orch_worker.session.session_reader import read_session

SECRET = "Žluťoučký-quaxifrage"
LOOK = {"tools": [{"tool": "read_file", "input": {"path": "note.txt"}}, {"tool": "list_files", "input": {}}]}
AGAIN = {"tools": [{"tool": "list_files", "input": {}}, {"tool": "list_files", "input": {"path": "."}}]}
MARK = "[deleted on "


def archiving(**more: Any) -> Config:
    """Return a configuration that archives each turn with two calls before its reply."""
    given = {"enabled": True, "async_": False, "profile": "seed", "trigger": TriggerConfig(tool_call_threshold=2)}
    return Config(archival=ArchivalConfig(**(given | more)))


@pytest.fixture(params=["fake"])
async def world(request: pytest.FixtureRequest, home: Path) -> AsyncIterator[Open]:
    """A function that opens orchestrators. Tests that need processes have the mark AND_PROCESSES."""
    async with worlds(request.param, home) as open_one:
        yield open_one


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with a file that contains the secret."""
    work = tmp_path / "work"
    work.mkdir()
    (work / "note.txt").write_text(f"{SECRET}\n")
    return work


async def looked(o: AsyncOrchestrator, folder: Path, *more: Any) -> tuple[AsyncSubagent, str]:
    """Return an agent that has read the secret, and the id of the archive of that turn."""
    script = ScriptedBackend([LOOK, "I looked.", *more])
    agent = await o.spawn("look", tools=["read_file", "list_files"], backend=script, cwd=folder)
    return agent, (await agent.query("what is there?")).archived_to or ""


def telling(home: Path) -> list[Path]:
    """Return the files that contain the secret."""
    files = [path for path in home.rglob("*") if path.is_file()]
    wanted = (SECRET.encode(), b"quaxifrage", SECRET.encode("unicode-escape"))
    return [path for path in files if any(word in path.read_bytes() for word in wanted)]


def unfinished(home: Path) -> list[Path]:
    """Return the files that interrupted rewrites have left."""
    return list(home.rglob("*.new"))


def journal(o: AsyncOrchestrator) -> bytes:
    """Return the content of the root's journal."""
    return Path(o.supervisor._journal.log.path).read_bytes()


def put_back(home: Path, content: bytes) -> None:
    """Replace the journal of the run by `content`."""
    (home / "runs" / "kept" / "journal.jsonl").write_bytes(content)


@AND_PROCESSES
async def test_pruning_leaves_no_text_and_the_agent_continues(world: Open, home: Path, folder: Path) -> None:
    """No file contains the text, the conversation is unchanged, and the next turn is archived."""
    o = await world(config=archiving())
    agent, holder = await looked(o, folder, AGAIN, "Again.", {"echo": True})
    assert SECRET in (await (await o.get(holder)).query("which quaxifrage?")).text
    await o.archives.search("quaxifrage")
    assert len(telling(home)) >= 3
    before = (await agent.show()).messages
    rows = await o.archives.list()
    pruned = await o.archives.prune(older=0)
    assert (pruned.archives, pruned.busy) == (tuple(rows), {})
    assert pruned.bytes > 300
    assert telling(home) == []
    assert (await agent.show()).messages == before
    assert (await agent.query("again?")).text == "Again."
    [row] = await o.archives.list()
    assert text_of((await o.archives.read(row.id))[-1]) == "Again."
    assert (await agent.query("echo?")).text == "echo?"


async def test_pruned_archive_is_reported_as_deleted(world: Open, folder: Path) -> None:
    """Every service reports the deletion, whether or not the holder was ever queried."""
    o = await world(config=archiving())
    _, asked = await looked(o, folder)
    _, other = await looked(o, folder)
    holder = await o.get(asked)
    await holder.query("which quaxifrage?")
    await o.archives.prune(older="0s")
    for id in (asked, other):
        for ask in (o.archives.read(id), o.get(id)):
            with pytest.raises(ArchiveDeletedError, match=f"the content of archive {id} was deleted on 20"):
                await ask
    for again in (holder.query("and now?"), holder.state(), holder.show()):
        with pytest.raises(ArchiveDeletedError):
            await again
    with pytest.raises(ArchiveDeletedError):
        holder.submit("and now?")
    mapped = await o.ask_all([asked, other], "which quaxifrage?")
    assert all("was deleted on" in (each.error or "") for each in mapped)
    assert [each.exit_code for each in mapped] == [ArchiveDeletedError.exit_code] * 2
    with pytest.raises(ArchiveDeletedError):
        await o.resume(asked)
    assert await o.archives.search("quaxifrage") == await o.archives.search("what is there?") == []
    [row] = [row for row in await o.agents(all=True) if row.kind == "holder"]
    assert (row.status, row.task[: len(MARK)]) == ("killed", MARK)
    assert "was deleted on" in (row.error or "")


async def test_agent_is_told_that_recalled_content_is_deleted(world: Open, folder: Path) -> None:
    """The agent's search finds nothing, and the prompt does not offer the archive any more."""
    o = await world(config=archiving(placement="system"))
    agent, holder = await looked(o, folder, {"tool": "search_archive", "input": {"query": "quaxifrage"}}, "done")
    view = read_session(Path((await agent.state()).folder)).view
    assert [id for id, _ in view.holders()] == [holder]
    await o.archives.prune(older=0)
    await agent.query("what did I see?")
    assert "Nothing in the archives resembles that." in str((await agent.show()).messages)
    view = read_session(Path((await agent.state()).folder)).view
    assert view.holders() == []


async def test_dry_run_reports_and_deletes_nothing(world: Open, home: Path, folder: Path) -> None:
    """The dry run reports the archives and the bytes that the real run deletes."""
    o = await world(config=archiving())
    _, holder = await looked(o, folder)
    await (await o.get(holder)).query("which quaxifrage?")
    before = telling(home)
    planned = await o.archives.prune(older=0, dry_run=True)
    assert [row.id for row in planned.archives] == [holder]
    assert telling(home) == before
    pruned = await o.archives.prune(older=0)
    assert (pruned.archives, pruned.bytes) == (planned.archives, planned.bytes)


async def test_younger_archives_stay_usable(world: Open, folder: Path) -> None:
    """Younger archives can be read, searched and queried, although their offsets in the file change."""
    o = await world(config=archiving())
    agent, old = await looked(o, folder, LOOK, "I looked again.")
    middle = (await o.archives.list())[0].created_at
    await asyncio.sleep(0.01)
    young = (await agent.query("and again?")).archived_to or ""
    holder = await o.get(young)
    assert SECRET in (await holder.query("which quaxifrage?")).text
    held = await o.archives.read(young)
    age = o.supervisor.clock() - _epoch(middle) - 0.005
    assert [row.id for row in (await o.archives.prune(older=age)).archives] == [old]
    assert [row.id for row in await o.archives.list()] == [young]
    assert await o.archives.read(young) == held
    assert {hit.id for hit in await o.archives.search("quaxifrage")} == {young}
    assert SECRET in (await holder.query("which quaxifrage?")).text
    await holder.kill()
    assert SECRET in (await holder.query("which quaxifrage?")).text
    assert (await o.archives.prune(older="1h")).archives == ()


def _epoch(iso: str) -> float:
    return datetime.fromisoformat(iso).timestamp()


async def test_busy_agent_keeps_its_archives(world: Open, home: Path, folder: Path) -> None:
    """The result names the agent, its work and the remedy. When the agent is idle, its archives are pruned."""
    o = await world(config=archiving())
    busy, kept = await looked(o, folder, {"text": "slow", "sleep": 60})
    _, gone = await looked(o, folder)
    answer = busy.submit("work on")
    await _until(lambda: o.supervisor.tree.agents[busy.id].status == "busy")
    pruned = await o.archives.prune(older=0)
    assert [row.id for row in pruned.archives] == [gone]
    assert pruned.busy == {
        busy.id: f"agent {busy.name!r} ({busy.id}) is at work: work on; wait for it, or cancel it, and try again"
    }
    assert await o.archives.read(kept)
    await busy.cancel()
    await answer
    assert [row.id for row in (await o.archives.prune(older=0)).archives] == [kept]
    assert telling(home) == []


async def test_pruning_can_be_limited_to_a_subtree(world: Open, folder: Path) -> None:
    """Agents outside the subtree keep their archives, and an unknown reference is an error."""
    o = await world(config=archiving())
    one, gone = await looked(o, folder)
    _, kept = await looked(o, folder)
    pruned = await o.archives.prune(older=0, ref=one.name)
    assert [row.id for row in pruned.archives] == [gone]
    assert [row.id for row in await o.archives.list()] == [kept]
    with pytest.raises(AgentNotFoundError):
        await o.archives.prune(older=0, ref="nobody")


@AND_PROCESSES
async def test_query_during_pruning_waits(world: Open, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The agent's process starts only after its transcript was rewritten."""
    o = await world(config=archiving())
    agent, _ = await looked(o, folder, "And now this.")
    begun, go_on = asyncio.Event(), asyncio.Event()
    delete = o.supervisor.archives.delete

    async def slowly(*arguments: Any) -> Any:
        begun.set()
        await go_on.wait()
        return await delete(*arguments)

    monkeypatch.setattr(o.supervisor.archives, "delete", slowly)
    pruning = asyncio.create_task(o.archives.prune(older=0))
    await begun.wait()
    assert (await agent.state()).status == "cold"
    answer = agent.submit("and now?")
    for _ in range(20):
        await asyncio.sleep(0)
    assert (await agent.state()).status == "starting"
    pruning.cancel()
    go_on.set()
    assert (await answer).text == "And now this."
    assert await o.archives.list() == []


async def test_pruning_survives_the_root(world: Open, home: Path, folder: Path) -> None:
    """The next root has no pruned archives, even if the journal does not record the deletion."""
    o = await world(config=archiving(), run="kept")
    _, holder = await looked(o, folder)
    await o.archives.prune(older=0)
    found = journal(o)
    await o.close()
    for content in (found, found[: found.index(b'"content_deleted"') - 9]):
        put_back(home, content)
        o = await world(config=archiving(), run="kept")
        assert await o.archives.list() == []
        with pytest.raises(ArchiveDeletedError):
            await o.get(holder)
        await o.close()
    o = await world(config=archiving(), run="kept")
    assert (await o.archives.prune(older=0)).archives == ()
    assert b'"content_deleted"' in journal(o)
    assert telling(home) == []


async def test_holder_finds_its_archive_after_an_interrupted_pruning(world: Open, home: Path, folder: Path) -> None:
    """A holder that was queried before the pruning answers, although its archive has other offsets now."""
    o = await world(config=archiving(), run="kept")
    agent, _ = await looked(o, folder, LOOK, "I looked again.")
    middle = (await o.archives.list())[0].created_at
    await asyncio.sleep(0.01)
    young = (await agent.query("and again?")).archived_to or ""
    await (await o.get(young)).query("which quaxifrage?")
    before = journal(o)
    await o.archives.prune(older=o.supervisor.clock() - _epoch(middle) - 0.005)
    await o.close()
    put_back(home, before)
    o = await world(config=archiving(), run="kept")
    assert SECRET in (await (await o.get(young)).query("which quaxifrage?")).text


async def test_full_disk_deletes_nothing(
    world: Open, home: Path, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The error names the full disk, and a later prune succeeds."""
    o = await world(config=archiving())
    agent, holder = await looked(o, folder, "fine", "fine")

    def full(*_: Any, **__: Any) -> Any:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(atomic_rewrite.os, "replace", full)
    with pytest.raises(StoreError, match="disk full: free some space"):
        await o.archives.prune(older=0)
    monkeypatch.undo()
    assert SECRET in str(await o.archives.read(holder))
    assert (await agent.query("are you there?")).text == "fine"
    assert unfinished(home) == []
    await o.archives.prune(older=0)
    assert telling(home) == []


@pytest.mark.parametrize("older", ["", "30", "never", -1, float("nan"), True])
async def test_invalid_age_is_refused(world: Open, folder: Path, older: Any) -> None:
    """The call raises ConfigError, and the archive can still be read."""
    o = await world(config=archiving())
    _, holder = await looked(o, folder)
    with pytest.raises(ConfigError, match=r"invalid age|Expected `float \| str`"):
        await o.archives.prune(older=older)
    assert await o.archives.read(holder)


async def _until(condition: Any) -> None:
    async with asyncio.timeout(20):
        while not condition():  # noqa: ASYNC110  # another process changes it
            await asyncio.sleep(0.01)
