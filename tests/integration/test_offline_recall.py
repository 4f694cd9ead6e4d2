"""The offline backend finds archived text with the tools of the agent."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from orch import ArchivalConfig, Config, ScriptedBackend
from orch_worker.backends.offline.extractive import HEADER

CONFIG = Config(archival=ArchivalConfig(enabled=True, async_=False, profile="seed"))
TOOLS = ["list_files", "grep_files", "read_file", "search_archive", "read_archive"]


async def test_archived_line_is_quoted_with_its_archive(world: Any, tmp_path: Path) -> None:
    """The answer begins with the archived line, the archive's id and the entry, also for a repeated question."""
    note = tmp_path / "pump.md"
    note.write_text("# Pump\n\nThe pump was oiled.\n\nThe pump shuts off at 82 degrees.\n")
    reads = [{"tool": "read_file", "input": {"path": "pump.md", "limit": lines}} for lines in range(1, 8)]
    o = await world(config=CONFIG)
    agent = await o.spawn("Know it", tools=TOOLS, cwd=tmp_path, backend=ScriptedBackend([{"tools": reads}, "Read."]))
    archive = (await agent.query("What does the file say?")).archived_to
    assert archive
    note.unlink()
    await agent.set_model("extractive")
    for _ in range(2):
        reply = await agent.query("At how many degrees does the pump shut off?")
        assert reply.text.startswith(f"{HEADER}\n\n{archive} entry 3\n> The pump shuts off at 82 degrees.")
    nothing = await agent.query("Where are zebras?")
    assert ", the archives of this conversation, " in nothing.text
