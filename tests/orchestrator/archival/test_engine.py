"""The archiving engine plans which entries of a running agent's session file are archived."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from agent_history import at_once
from orch import ArchivalConfig
from orch.archival.engine import ArchiveDraft, ArchiveEngine
from orch_protocol.agent.config import Profile, SummaryConfig, TriggerConfig
from orch_protocol.agent.spec import AgentSpec, BackendSpec
from orch_protocol.core.messages import Message, Text, ToolResult, ToolUse, assistant, user
from orch_protocol.services.archives.archiving import PlanArchiving
from orch_worker.backends.prices import Prices
from orch_worker.session.transcript import Transcript


@pytest.fixture
def transcript(tmp_path: Path) -> Iterator[Transcript]:
    transcript = Transcript.open(tmp_path, agent="a", cwd="/")
    yield transcript
    transcript.close()


def spec_of(transcript: Transcript) -> AgentSpec:
    """Return the spec of the agent with this transcript."""
    folder = str(transcript.path.parent)
    return AgentSpec(id="a", seq=1, name="a", task="t", backend=BackendSpec("scripted"), folder=folder, cwd="/")


def step(number: int) -> list[Message]:
    """Return a call and its result."""
    id = f"c{number}"
    return [Message("assistant", (ToolUse(id, "look", {}),)), Message("user", (ToolResult(id, (Text("seen"),)),))]


async def planned(transcript: Transcript, **ask: Any) -> list[tuple[str, str]]:
    """Return the first and last entry of each planned archive."""
    config = ArchivalConfig(profile="seed", trigger=TriggerConfig(tool_call_threshold=1))
    archives = ArchiveEngine(config, at_once)
    plan = await archives.plan(spec_of(transcript), PlanArchiving(**ask), Prices())
    await archives.close()
    return [(collapse.first, collapse.last) for collapse in plan.collapses]


async def test_plan_does_not_touch_a_newer_turn(transcript: Transcript) -> None:
    """The plan for a finished turn ignores the next turn, which may already have made calls."""
    ids = [transcript.message(message, "q1").id for message in (user("one?"), *step(1), assistant("one"))]
    for message in (user("two?"), *step(2)):
        transcript.message(message, "q2")
    assert await planned(transcript, stop_reason="end_turn", last=ids[-1]) == [(ids[1], ids[-1])]


async def test_turn_without_an_answer_is_archived(transcript: Transcript) -> None:
    """A turn that reached its limit of calls is archived without a final answer."""
    ids = [transcript.message(message, "q1").id for message in (user("one?"), *step(1))]
    assert await planned(transcript, stop_reason="max_turns", last=ids[-1]) == [(ids[1], ids[-1])]
    assert await planned(transcript) == []


@pytest.mark.parametrize(
    ("profile", "style", "requested"),
    [("balanced", None, 0), ("economy", "structured", 1), ("seed", None, 1), ("seed", "none", 0)],
)
async def test_style_decides_whether_a_model_is_asked(
    transcript: Transcript, profile: Profile, style: Any, requested: int
) -> None:
    """Without a configured style, only the profile seed asks a model for summaries of archived turns."""
    ids = [transcript.message(message, "q1").id for message in (user("one?"), *step(1), assistant("one"))]
    config = ArchivalConfig(
        profile=profile, trigger=TriggerConfig(tool_call_threshold=1), summary=SummaryConfig(style=style)
    )
    archives = ArchiveEngine(config, at_once)
    ask = PlanArchiving(stop_reason="end_turn", last=ids[-1], summaries=True)
    plan = await archives.plan(spec_of(transcript), ask, Prices())
    await archives.close()
    assert len(plan.collapses) == 1
    assert len(plan.summarize) == requested


class Watched(list[Any]):
    """A list that counts how often its items are read."""

    looks = 0

    def __getitem__(self, place: Any) -> Any:
        Watched.looks += 1 if isinstance(place, int) else len(super().__getitem__(place))
        return super().__getitem__(place)

    def __iter__(self) -> Iterator[Any]:
        return (self[place] for place in range(len(self)))

    def __reversed__(self) -> Iterator[Any]:
        return (self[place] for place in range(len(self) - 1, -1, -1))


async def test_archiving_many_turns_at_once_is_linear(transcript: Transcript, monkeypatch: pytest.MonkeyPatch) -> None:
    """The number of item reads grows linearly with the number of turns, for example after an import."""
    turns = 60
    for turn in range(turns):
        for message in (user("what?"), *step(turn), assistant("so")):
            transcript.message(message, f"q{turn}")
    changed = ArchiveDraft.record_change

    def watched(draft: ArchiveDraft, was: Any, now: Any, *said: Any) -> None:
        changed(draft, Watched(was), Watched(now), *said)

    monkeypatch.setattr(ArchiveDraft, "record_change", watched)
    Watched.looks = 0
    assert len(await planned(transcript, stop_reason="end_turn")) == turns
    assert Watched.looks < 20 * turns
