"""Which model answers, and what a conversation has on record of that."""

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
    """One after the other has the agent of `folder`."""

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
        """Begin a turn in which `model` answers, if any is named, and return the last entry of it."""
        if model is not None or self._answering.away:
            await self._answering.turn(model)
        self.transcript.message(user("go"), turn="q")
        assert self._answering.now is (OTHER if model else OWN)
        return self.transcript.session.leaf or ""

    def on_record(self) -> list[str]:
        """Return which models the file says went on, in order."""
        entries = map(json.loads, self.transcript.path.read_text().splitlines())
        return [entry["modelId"] for entry in entries if entry["type"] == "model_change"]


async def test_a_turn_of_another_models_is_on_record_and_so_is_who_goes_on_then(tmp_path: Path) -> None:
    """Once each, also when the process that answered is gone, and when nobody names a model from then on."""
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


async def test_who_goes_on_behind_an_earlier_entry_is_on_record_there(tmp_path: Path) -> None:
    """The record of the branch that was left says nothing of this one."""
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
