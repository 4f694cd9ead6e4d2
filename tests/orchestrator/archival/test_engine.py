"""What is to leave the conversation of a running agent, as its session file has it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from agent_history import at_once
from orch import ArchivalConfig
from orch.archival.engine import ArchiveDraft, ArchiveEngine
from orch.archival.plan.economics import Prices
from orch_protocol.agent.config import TriggerConfig
from orch_protocol.agent.spec import AgentSpec, BackendSpec
from orch_protocol.core.messages import Message, Text, ToolResult, ToolUse, assistant, user
from orch_protocol.services.archiving import PlanArchiving
from orch_worker.session.transcript import Transcript


@pytest.fixture
def transcript(tmp_path: Path) -> Iterator[Transcript]:
    """A transcript that an agent writes."""
    transcript = Transcript.open(tmp_path, agent="a", cwd="/")
    yield transcript
    transcript.close()


def spec_of(transcript: Transcript) -> AgentSpec:
    """Return the agent whose transcript it is."""
    folder = str(transcript.path.parent)
    return AgentSpec(id="a", seq=1, name="a", task="t", backend=BackendSpec("scripted"), folder=folder, cwd="/")


def step(number: int) -> list[Message]:
    """Return a call and its result."""
    id = f"c{number}"
    return [Message("assistant", (ToolUse(id, "look", {}),)), Message("user", (ToolResult(id, (Text("seen"),)),))]


async def planned(transcript: Transcript, **ask: Any) -> list[tuple[str, str]]:
    """Return first and last entry of each part that is to be archived."""
    config = ArchivalConfig(profile="seed", trigger=TriggerConfig(tool_call_threshold=1))
    archives = ArchiveEngine(config, at_once)
    plan = await archives.plan(spec_of(transcript), PlanArchiving(**ask), Prices())
    await archives.close()
    return [(collapse.first, collapse.last) for collapse in plan.collapses]


async def test_a_turn_that_has_begun_since_is_untouched(transcript: Transcript) -> None:
    """The root hears of a turn's end when the next one may have made calls already: those are not done."""
    ids = [transcript.message(message, "q1").id for message in (user("one?"), *step(1), assistant("one"))]
    for message in (user("two?"), *step(2)):
        transcript.message(message, "q2")
    assert await planned(transcript, stop_reason="end_turn", last=ids[-1]) == [(ids[1], ids[-1])]


async def test_the_turn_that_ended_goes_without_an_answer_too(transcript: Transcript) -> None:
    """When it ended at its limit."""
    ids = [transcript.message(message, "q1").id for message in (user("one?"), *step(1))]
    assert await planned(transcript, stop_reason="max_turns", last=ids[-1]) == [(ids[1], ids[-1])]
    assert await planned(transcript) == []


class Watched(list[Any]):
    """Pieces that count how often one of them is looked at."""

    looks = 0

    def __getitem__(self, place: Any) -> Any:
        Watched.looks += 1 if isinstance(place, int) else len(super().__getitem__(place))
        return super().__getitem__(place)

    def __iter__(self) -> Iterator[Any]:
        return (self[place] for place in range(len(self)))

    def __reversed__(self) -> Iterator[Any]:
        return (self[place] for place in range(len(self) - 1, -1, -1))


async def test_many_turns_that_go_at_once_are_not_compared_with_all_that_stays(
    transcript: Transcript, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As of an imported conversation: for each archive what it archives is looked at, however long the rest is."""
    turns = 60
    for turn in range(turns):
        for message in (user("what?"), *step(turn), assistant("so")):
            transcript.message(message, f"q{turn}")
    changed = ArchiveDraft.changed

    def watched(draft: ArchiveDraft, was: Any, now: Any, *said: Any) -> None:
        changed(draft, Watched(was), Watched(now), *said)

    monkeypatch.setattr(ArchiveDraft, "changed", watched)
    Watched.looks = 0
    assert len(await planned(transcript, stop_reason="end_turn")) == turns
    assert Watched.looks < 20 * turns
