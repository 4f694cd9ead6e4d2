"""What the root does to find archives: no more than it must."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from orch import Config
from orch.archival.engine import Archives
from orch_protocol.errors import AgentNotFoundError
from orchestrator.world import opened
from past import EAGER


async def test_a_file_is_looked_through_once_for_archives_that_nobody_told_of(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A wrong id costs the reading of what has grown since the last one, not of every file there is."""
    asked: list[str] = []
    known = Archives.known

    async def counted(self: Archives, spec: Any) -> Any:
        asked.append(spec.id)
        return await known(self, spec)

    async with opened(tmp_path, config=Config(archival=EAGER)) as o:
        first, second = await o.scripted("one", "two"), await o.scripted("one")
        await first.query("go")
        await second.query("go")
        monkeypatch.setattr(Archives, "known", counted)
        for expected in ({first.id, second.id}, set()):
            asked.clear()
            with pytest.raises(AgentNotFoundError):
                await o.get("ffffffffffff")
            assert set(asked) <= expected
        await first.query("more")
        with pytest.raises(AgentNotFoundError):
            await o.get("ffffffffffff")
        assert set(asked) == {first.id}


async def test_archives_that_were_listed_are_found(tmp_path: Path) -> None:
    """A list tells nobody: by its id each is read all the same, also when the journal never heard of it."""
    async with opened(tmp_path, config=Config(archival=replace(EAGER, async_=False))) as o:
        agent = await o.scripted("one")
        holder = (await agent.query("go")).archived_to
        nodes = o.supervisor.tree.nodes
        nodes[agent.id].archives.clear()
        nodes.holders.clear()
        o.supervisor.archives._told.clear()
        assert [row.id for row in await o.archives()] == [holder]
        assert len(await o.read_archive(holder or "")) == 2
