"""Questions to the archives of a program that has its own agent loop."""

from __future__ import annotations

from pathlib import Path

import pytest

from message_shapes import SHAPES, Shape
from orch import Archiver, Config, Orchestrator
from orch.processes.in_process import InProcessLauncher
from orch_protocol.core.errors import AgentNotFoundError


@pytest.mark.parametrize("shape", SHAPES, ids=lambda shape: shape.name)
def test_archive_is_asked(tmp_path: Path, shape: Shape) -> None:
    """The holder's answer names the entry, and the holder ends after the answer."""
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
    assert "4711" in (tmp_path / "archive" / "archive-000001.jsonl").read_text()
