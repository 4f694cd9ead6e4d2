"""Questions to the archives of a program that has its own agent loop."""

from __future__ import annotations

from pathlib import Path

import pytest

from message_shapes import SHAPES, Shape
from orch import Archiver, Config, Orchestrator
from orch.processes.in_process import InProcessLauncher
from orch.supervisor import ephemeral_sessions
from orch_protocol.core.errors import AgentNotFoundError


@pytest.mark.parametrize("in_memory", [True, False])
@pytest.mark.parametrize("shape", SHAPES, ids=lambda shape: shape.name)
def test_archive_is_asked(tmp_path: Path, shape: Shape, in_memory: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """The holder's answer names the entry, the holder ends after the answer, and no copy of the archive remains."""
    if not in_memory:
        monkeypatch.setattr(ephemeral_sessions, "MEMORY", tmp_path / "missing")
    root = Orchestrator(config=Config(), home=tmp_path / "home", env={}, launcher=InProcessLauncher)
    with root, Archiver(tmp_path / "archive", shape.name, "seed", orchestrator=root) as archiver:
        turn = [shape.user("How is the valve?"), shape.assistant("The valve is at 4711 mbar. " + "It holds. " * 4000)]
        archiver.fold(turn)
        (record,) = archiver.archives()
        answer = archiver.query(record.id[:6], "At how many mbar?")
        assert "4711 mbar" in answer
        assert "entry 2" in answer
        assert root.agents() == []
        with pytest.raises(AgentNotFoundError):
            archiver.query("ffffff", "Who?")
    files = [path for path in tmp_path.rglob("*") if path.is_file() and b"mbar" in path.read_bytes()]
    assert "archive-000001.jsonl" in [path.name for path in files]
    assert {path.parent for path in files} == {tmp_path / "archive"}
