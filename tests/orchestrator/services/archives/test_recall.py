"""What the root does to find archives: no more than it must."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from agent_history import EAGER
from orch import ArchivalConfig, Config
from orch.archival.engine import ArchiveEngine
from orch_protocol.core.errors import AgentNotFoundError, AmbiguousRefError, ConfigError
from orchestrator.root_double import opened


async def test_a_file_is_looked_through_once_for_archives_that_nobody_told_of(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A wrong id costs the reading of what has grown since the last one, not of every file there is."""
    asked: list[str] = []
    known = ArchiveEngine.known

    async def counted(self: ArchiveEngine, spec: Any) -> Any:
        asked.append(spec.id)
        return await known(self, spec)

    async with opened(tmp_path, config=Config(archival=replace(EAGER, async_=False))) as o:
        first, second = await o.scripted("one", "two"), await o.scripted("one")
        await first.query("go")
        await second.query("go")
        monkeypatch.setattr(ArchiveEngine, "known", counted)
        for expected in ({first.id, second.id}, set()):
            asked.clear()
            with pytest.raises(AgentNotFoundError):
                await o.get("ffffffffffff")
            assert set(asked) <= expected
        await first.query("more")
        with pytest.raises(AgentNotFoundError):
            await o.get("ffffffffffff")
        assert set(asked) == {first.id}


async def test_too_little_of_an_id_is_told_so(tmp_path: Path) -> None:
    """There is such an archive; it takes 4 characters to mean it. What begins none is not found."""
    async with opened(tmp_path, config=Config(archival=replace(EAGER, async_=False))) as o:
        agent = await o.scripted("one")
        holder = (await agent.query("go")).archived_to or ""
        for length in range(1, 4):
            with pytest.raises(AmbiguousRefError, match="is too short: type at least 4 characters"):
                await o.archives.read(holder[:length])
        assert len(await o.archives.read(holder[:4])) == 2
        with pytest.raises(AgentNotFoundError, match="no archive 'zz'"):
            await o.archives.read("zz")
        short = next(holder[:length] for length in range(1, 4) if not agent.id.startswith(holder[:length]))
        with pytest.raises(AgentNotFoundError, match="no agent goes by"):
            await o.get(short)


@pytest.mark.parametrize(
    ("method", "given", "words"),
    [
        ("search", (None,), r"`\$.query`"),
        ("search", ([],), r"`\$.query`"),
        ("read", (None,), r"`\$.id`"),
        ("read", ("",), "goes by its id"),
    ],
)
async def test_what_is_no_query_and_no_id_is_told(tmp_path: Path, method: str, given: Any, words: str) -> None:
    """Python's own complaint would name a line of ours."""
    async with opened(tmp_path) as o:
        with pytest.raises(ConfigError, match=words):
            await getattr(o.archives, method)(*given)
        with pytest.raises(ConfigError, match=r"`\$.limit`"):
            await o.archives.search("x", limit="many")  # type: ignore[arg-type]
        with pytest.raises(ConfigError, match=r"`\$.first`"):
            await o.archives.read("abcd", first="x")  # type: ignore[arg-type]


async def test_archives_that_were_listed_are_found(tmp_path: Path) -> None:
    """A list tells nobody: by its id each is read all the same, also when the journal never heard of it."""
    async with opened(tmp_path, config=Config(archival=replace(EAGER, async_=False))) as o:
        agent = await o.scripted("one")
        holder = (await agent.query("go")).archived_to
        nodes = o.supervisor.tree.agents
        nodes[agent.id].archives.clear()
        nodes.holders.clear()
        o.supervisor.archives._told.clear()
        assert [row.id for row in await o.archives.list()] == [holder]
        assert len(await o.archives.read(holder or "")) == 2


async def test_a_search_reads_the_files_of_those_that_have_archives(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However many other agents there were: each of them is looked at once after it was last at work, by whatever
    root; one that was never asked is not."""
    read: list[str] = []

    def counting(name: str) -> None:
        act = getattr(ArchiveEngine, name)

        async def counted(self: ArchiveEngine, spec: Any, *more: Any) -> Any:
            read.append(spec.id)
            return await act(self, spec, *more)

        monkeypatch.setattr(ArchiveEngine, name, counted)

    eager = Config(archival=replace(EAGER, async_=False))
    lazy = Config(archival=ArchivalConfig(enabled=True))
    async with opened(tmp_path, run="mine", config=eager) as o:
        owner = await o.scripted("needle")
        await owner.query("go")
    async with opened(tmp_path, run="mine", config=lazy) as o:
        asked, never = await o.scripted("one"), await o.scripted("one")
        await asked.query("go")
        await never.kill()
        await asked.kill()
    for name in ("known", "search"):
        counting(name)
    for others in ({asked.id}, set()):
        read.clear()
        async with opened(tmp_path, run="mine", config=lazy) as o:
            assert await o.archives.search("needle")
            assert [row.owner for row in await o.archives.list()] == [owner.id]
        assert set(read) == {owner.id} | others
