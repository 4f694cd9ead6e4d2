"""Archives by id and by search: results, errors, and the files that the root reads."""

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


async def test_unknown_archive_id_scans_only_new_data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A repeated lookup of an unknown id reads only agents with new turns."""
    asked: list[str] = []
    known = ArchiveEngine.list_records

    async def counted(self: ArchiveEngine, spec: Any) -> Any:
        asked.append(spec.id)
        return await known(self, spec)

    async with opened(tmp_path, config=Config(archival=replace(EAGER, async_=False))) as o:
        first, second = await o.scripted("one", "two"), await o.scripted("one")
        await first.query("go")
        await second.query("go")
        monkeypatch.setattr(ArchiveEngine, "list_records", counted)
        for expected in ({first.id, second.id}, set()):
            asked.clear()
            with pytest.raises(AgentNotFoundError):
                await o.get("ffffffffffff")
            assert set(asked) <= expected
        await first.query("more")
        with pytest.raises(AgentNotFoundError):
            await o.get("ffffffffffff")
        assert set(asked) == {first.id}


async def test_archive_written_during_a_search_is_found_by_the_next(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The agent's process wrote the archive after the search had read the session file, and then ended."""
    known, read = ArchiveEngine.list_records, []

    async def early(self: ArchiveEngine, spec: Any) -> Any:
        records = await known(self, spec)
        if not read:
            read.append(spec.id)
            file.write_bytes(whole)
            return []
        return records

    async with opened(tmp_path, config=Config(archival=replace(EAGER, async_=False))) as o:
        agent = await o.scripted("one")
        holder = (await agent.query("go")).archived_to or ""
        await agent.kill()
        nodes, engine = o.supervisor.tree.agents, o.supervisor.archives
        record = nodes[agent.id]
        file = Path(record.spec.folder) / "session.jsonl"
        whole = file.read_bytes()
        assert agent.id in nodes.unsearched
        record.archives.clear()
        nodes.holders.clear()
        engine._reported_sizes.clear()
        monkeypatch.setattr(ArchiveEngine, "list_records", early)
        file.write_bytes(whole[: whole.rindex(b'{"type":"archive"')])
        with pytest.raises(AgentNotFoundError):
            await o.get(holder)
        assert (await o.get(holder)).id == holder


async def test_short_archive_id_prefix_is_refused(tmp_path: Path) -> None:
    """A prefix needs at least 4 characters; a short prefix that matches no archive is reported as not found."""
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
        with pytest.raises(AgentNotFoundError, match="no agent has the name or id"):
            await o.get(short)


@pytest.mark.parametrize(
    ("method", "given", "words"),
    [
        ("search", (None,), r"`\$.query`"),
        ("search", ([],), r"`\$.query`"),
        ("read", (None,), r"`\$.id`"),
        ("read", ("",), "id of an archive"),
    ],
)
async def test_invalid_query_or_id_raises_config_error(tmp_path: Path, method: str, given: Any, words: str) -> None:
    """`archives.search` and `archives.read` name the invalid parameter in their error."""
    async with opened(tmp_path) as o:
        with pytest.raises(ConfigError, match=words):
            await getattr(o.archives, method)(*given)
        with pytest.raises(ConfigError, match=r"`\$.limit`"):
            await o.archives.search("x", limit="many")  # type: ignore[arg-type]
        with pytest.raises(ConfigError, match=r"`\$.first`"):
            await o.archives.read("abcd", first="x")  # type: ignore[arg-type]


async def test_listed_archives_can_be_read(tmp_path: Path) -> None:
    """Archives that the root's state does not contain are listed, and can then be read."""
    async with opened(tmp_path, config=Config(archival=replace(EAGER, async_=False))) as o:
        agent = await o.scripted("one")
        holder = (await agent.query("go")).archived_to
        nodes = o.supervisor.tree.agents
        nodes[agent.id].archives.clear()
        nodes.holders.clear()
        o.supervisor.archives._reported_sizes.clear()
        assert [row.id for row in await o.archives.list()] == [holder]
        assert len(await o.archives.read(holder or "")) == 2


async def test_search_reads_only_files_with_archives(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A search checks an agent without archives once after its last turn, and never if it had no turn."""
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
    for name in ("list_records", "search"):
        counting(name)
    for others in ({asked.id}, set()):
        read.clear()
        async with opened(tmp_path, run="mine", config=lazy) as o:
            assert await o.archives.search("needle")
            assert [row.owner for row in await o.archives.list()] == [owner.id]
        assert set(read) == {owner.id} | others
