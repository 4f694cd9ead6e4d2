"""The table of stages: each row is complete, and each event creates the patch of its stage."""

from __future__ import annotations

from typing import get_args

import msgspec
import pytest

from orch_protocol.hooks.events import Event, ToolCall, TurnEnd
from orch_protocol.hooks.patches import Abort, Decision, Patch, PromptPatch
from orch_protocol.hooks.stages import ALIASES, STAGES, Stage

PIPELINE = [
    f"{when}-{what}" for what in ("assess", "reason", "llm", "tool", "reflect", "output") for when in ("pre", "post")
]


def test_every_event_has_one_row() -> None:
    """Each event type is in exactly one row, whose name is the name of the stage."""
    assert {stage.event for stage in STAGES.values()} == set(Event.__subclasses__())
    assert len(STAGES) == len(Event.__subclasses__())
    assert all(name == stage.name for name, stage in STAGES.items())


def test_every_patch_has_one_row() -> None:
    """Each patch type belongs to exactly one stage."""
    patches = [stage.patch for stage in STAGES.values() if stage.patch is not None]
    assert sorted(map(str, patches)) == sorted(map(str, Patch.__subclasses__()))


@pytest.mark.parametrize("stage", STAGES.values(), ids=STAGES)
def test_patched_fields_exist_in_the_event(stage: Stage) -> None:
    """The event has each field that a patch can change, so that later hooks see the change.

    `inject` is not a field of an event, because it adds text. A PromptPatch changes the field `parts`.
    """
    fields = {"parts"} if stage.patch is PromptPatch else set(stage.fields) - {"inject"}
    assert fields <= set(stage.event.__struct_fields__)


@pytest.mark.parametrize("stage", STAGES.values(), ids=STAGES)
def test_deciding_stage_can_fail_closed(stage: Stage) -> None:
    """A stage with decisions has a decision for a failed guard. Other stages have none."""
    assert (stage.closed is not None) == bool(stage.decisions)
    assert set(stage.decisions) <= set(get_args(Decision))


def test_pipeline_stage_names_are_aliases() -> None:
    """The names of pipeline stages, and `before_agent_start`, are aliases of stages."""
    assert sorted(ALIASES) == sorted([*PIPELINE, "before_agent_start"])
    assert ALIASES["before_agent_start"] == "before_turn"
    assert set(ALIASES.values()) <= set(STAGES)


def test_event_creates_the_patch_of_its_stage() -> None:
    """An event refuses the fields of other patches, and an observing stage has no patch."""
    patch = ToolCall(id="1", name="bash", input={}).patch(input={"command": "ls"})
    assert msgspec.to_builtins(patch) == {"input": {"command": "ls"}}
    with pytest.raises(TypeError, match="text"):
        ToolCall(id="1", name="bash", input={}).patch(text="")
    with pytest.raises(TypeError, match="observing"):
        TurnEnd(text="", stop_reason="end_turn").patch(text="x")


def test_events_round_trip_through_msgpack() -> None:
    """A decoded event is equal to the encoded event, and has its stage."""
    event = ToolCall(n=3, turn="q", id="1", name="bash", input={"command": "ls"})
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(event), type=STAGES["tool_call"].event) == event
    assert event.stage == "tool_call"


def test_decisions_round_trip() -> None:
    """A decoded decision is equal to the encoded decision."""
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(Abort("no")), type=Decision) == Abort("no")
