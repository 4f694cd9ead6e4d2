"""The table of stages: each row is whole, and each event makes its own patch."""

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
    """Each event type stands in exactly one row, under its own name."""
    assert {stage.event for stage in STAGES.values()} == set(Event.__subclasses__())
    assert len(STAGES) == len(Event.__subclasses__())
    assert all(name == stage.name for name, stage in STAGES.items())


def test_every_patch_has_one_row() -> None:
    """Each patch type belongs to exactly one stage."""
    patches = [stage.patch for stage in STAGES.values() if stage.patch is not None]
    assert sorted(map(str, patches)) == sorted(map(str, Patch.__subclasses__()))


@pytest.mark.parametrize("stage", STAGES.values(), ids=STAGES)
def test_what_is_changed_is_a_field_of_the_event(stage: Stage) -> None:
    """Whatever a patch changes can be seen in the event, by hooks after it; what it injects is added beside it.

    One that adds, replaces and drops parts of a prompt changes what these are.
    """
    fields = {"parts"} if stage.patch is PromptPatch else set(stage.fields) - {"inject"}
    assert fields <= set(stage.event.__struct_fields__)


@pytest.mark.parametrize("stage", STAGES.values(), ids=STAGES)
def test_a_stage_that_decides_can_fail_closed(stage: Stage) -> None:
    """Where there are decisions, one of them stands in for a guard that failed; where there are none, none does."""
    assert (stage.closed is not None) == bool(stage.decisions)
    assert set(stage.decisions) <= set(get_args(Decision))


def test_pipeline_stages_are_names_of_stages() -> None:
    """The stages of a pipeline are other names of stages here."""
    assert sorted(ALIASES) == sorted(PIPELINE)
    assert set(ALIASES.values()) <= set(STAGES)


def test_an_event_makes_the_patch_of_its_stage() -> None:
    """An event makes the patch that its stage takes, and no other."""
    patch = ToolCall(id="1", name="bash", input={}).patch(input={"command": "ls"})
    assert msgspec.to_builtins(patch) == {"input": {"command": "ls"}}
    with pytest.raises(TypeError, match="text"):
        ToolCall(id="1", name="bash", input={}).patch(text="")
    with pytest.raises(TypeError, match="observed"):
        TurnEnd(text="", stop_reason="end_turn").patch(text="x")


def test_events_cross_processes() -> None:
    """An event comes back from msgpack as it was, with its stage."""
    event = ToolCall(n=3, turn="q", id="1", name="bash", input={"command": "ls"})
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(event), type=STAGES["tool_call"].event) == event
    assert event.stage == "tool_call"


def test_decisions_cross_processes() -> None:
    """A decision comes back as the one it was."""
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(Abort("no")), type=Decision) == Abort("no")
