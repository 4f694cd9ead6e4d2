"""Model selection: which model answers, and which changes the transcript records."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from msgspec import Struct

from orch_protocol.agent.spec import AgentSpec, BackendSpec
from orch_protocol.core.messages import user
from orch_protocol.session.tree import MoveLeaf, SessionEdit
from orch_worker.agent.model_selection import ModelSelection
from orch_worker.backends.offline.scripted import ScriptedBackend
from orch_worker.backends.switchable import SwitchableBackend
from orch_worker.session.transcript import Transcript

OWN, OTHER = BackendSpec("anthropic", "own"), BackendSpec("openai", "other")


class Process:
    """A process of the agent in `folder`. Several processes follow one another."""

    def __init__(self, folder: Path) -> None:
        self.transcript = Transcript.open(folder, agent="a1", cwd=str(folder))
        spec = AgentSpec("a1", 1, "agent", "task", OWN, str(folder), str(folder))
        made: Any = lambda _: ScriptedBackend([])  # noqa: E731
        self._answering = ModelSelection(
            spec, SwitchableBackend(made(OWN)), self._find, made, self.transcript, lambda: None
        )

    async def _find(self, _service: str, _params: Struct, _seconds: float | None = None) -> Any:
        return OTHER

    async def takes_a_turn(self, model: str | None = None) -> str:
        """Run a turn with `model`, or with the agent's own model. Return the last entry."""
        if model is not None or self._answering.uses_other_model:
            await self._answering.use_model(model)
        self.transcript.message(user("go"), turn="q")
        assert self._answering.current is (OTHER if model else OWN)
        return self.transcript.session.leaf or ""

    def on_record(self) -> list[str]:
        """Return the models in the recorded changes, in order."""
        entries = map(json.loads, self.transcript.path.read_text().splitlines())
        return [entry["modelId"] for entry in entries if entry["type"] == "model_change"]


async def test_model_change_is_recorded_once_and_inherited_by_the_next_process(tmp_path: Path) -> None:
    """Each change is one entry. The next process continues with the recorded model."""
    process = Process(tmp_path)
    await process.takes_a_turn()
    for _ in range(2):
        await process.takes_a_turn("openai:other")
    assert process.on_record() == ["other"]
    process.transcript.close()
    process = Process(tmp_path)
    for _ in range(2):
        await process.takes_a_turn()
    assert process.on_record() == ["other", "own"]
    process.transcript.close()


async def test_model_change_after_going_back_is_recorded_on_the_new_branch(tmp_path: Path) -> None:
    """The entry on the abandoned branch does not count for the new one."""
    process = Process(tmp_path)
    own = await process.takes_a_turn()
    other = await process.takes_a_turn("openai:other")
    process.transcript.change(SessionEdit("c1", MoveLeaf(own)))
    await process.takes_a_turn("openai:other")
    assert process.on_record() == ["other", "other"]
    process.transcript.change(SessionEdit("c2", MoveLeaf(own)))
    await process.takes_a_turn()
    assert process.on_record() == ["other", "other"]
    process.transcript.change(SessionEdit("c3", MoveLeaf(other)))
    await process.takes_a_turn()
    assert process.on_record() == ["other", "other", "own"]
    process.transcript.close()
