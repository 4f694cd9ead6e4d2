"""Messages and questions that the holder of an archive receives."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from message_shapes import SHAPES, Shape, work
from orch import ArchivalConfig, Archiver
from orch_protocol.agent.config import TriggerConfig
from orch_protocol.core.messages import Message, Reply, text_of

ANY = TriggerConfig(token_threshold=1, tool_call_threshold=1)


class Root:
    """A fake orchestrator whose only agent records its task, history and question."""

    def __init__(self) -> None:
        self.task = self.asked = ""
        self.history: tuple[Message, ...] = ()
        self.alive = 0

    def spawn(self, task: str, *, preset: str, history: tuple[Message, ...], persist: bool) -> Root:
        """Record the task and the history. Return the only agent."""
        assert (preset, persist) == ("holder", False)
        self.task, self.history, self.alive = task, history, self.alive + 1
        return self

    def query(self, prompt: str) -> Reply:
        """Record the prompt and return a fixed reply."""
        self.asked = prompt
        return Reply("a", "q", "so it is")

    def kill(self) -> None:
        """Reduce the number of running agents."""
        self.alive -= 1


@pytest.mark.parametrize("shape", SHAPES, ids=lambda shape: shape.name)
def test_holder_receives_numbered_entries(tmp_path: Path, shape: Shape) -> None:
    """The history contains all entries, including those of earlier phases. Calls and results are text."""
    root: Any = Root()
    config = ArchivalConfig(profile="economy", high_tokens=1500, low_tokens=300, gate=False, trigger=ANY)
    with Archiver(tmp_path, shape.name, config=config, orchestrator=root) as archiver:
        live: list[Any] = []
        for message in [*work(shape, 1, steps=12, size=900), shape.user("next"), shape.assistant("y" * 8000)]:
            live = archiver.fold([*live, message])
        turn = next(record for record in archiver.archives() if record.kind == "turn" and record.members)
        assert archiver.query(turn.id, "How long did needle_1_3 take?") == "so it is"
    whole = archiver_length(tmp_path, shape, turn.id)
    assert [text_of(message).split("\n")[0] for message in root.history] == [
        f"[entry {number}]" for number in range(1, whole + 1)
    ]
    assert "needle_1_3 took" in "".join(map(text_of, root.history))
    assert "Look into module 1" in root.task
    assert root.asked == "How long did needle_1_3 take?"
    assert root.alive == 0


def archiver_length(folder: Path, shape: Shape, id: str) -> int:
    """Return the number of messages that `read_archive` returns for an archive."""
    with Archiver(folder, shape.name) as archiver:
        return len(archiver.read_archive(id))


def test_era_holder_receives_member_records_and_search_hits(tmp_path: Path) -> None:
    """The question contains search hits with archive and entry."""
    root: Any = Root()
    shape = SHAPES[0]
    config = ArchivalConfig(profile="economy", high_tokens=3000, low_tokens=800, rollup_tokens=300)
    with Archiver(tmp_path, shape.name, config=config, orchestrator=root) as archiver:
        live: list[Any] = []
        for number in range(12):
            for message in work(shape, number, steps=3, size=900):
                live = archiver.fold([*live, message])
        era = max(archiver.archives(), key=lambda record: record.level)
        assert era.kind == "era"
        archiver.query(era.id, "How long did needle_1_2 take?")
    assert len(root.history) < 4 * 12
    assert "[archived turn" in "".join(map(text_of, root.history))
    assert "needle_1_2 took 12.5 ms" in root.asked
    assert f"{era.id} entry 15 (turn 2, 10 turns ago" in root.asked
