"""Every pair of stage and action: what it does is seen in the next request, in a tool that runs, on record, or in the
reply. A pair that is in no row fails."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from orch_protocol.core.messages import Reply, text_of, user
from orch_protocol.hooks.patches import Abort, Block
from orch_protocol.hooks.stages import STAGES
from source_tree import ROOT
from worker.agent.test_turn_hooks import CALL, TWO, Hooked, Watched, on

Seen = Callable[[Hooked, Reply], bool]


class Refused(Block, frozen=True):
    """What a program may make of a Block."""

    code: int = 0


def sent(talk: Hooked) -> str:
    """Return everything that the model was sent."""
    return str(talk.backend.sent)  # type: ignore[attr-defined]


def recorded(talk: Hooked) -> list[str]:
    """Return the texts on record."""
    return [text_of(message) for message in talk.recorded]


def aborted(_talk: Hooked, reply: Reply) -> bool:
    """Return whether a hook has ended the turn, with its own words for a reply."""
    return (reply.text, reply.stop_reason) == ("CHANGED", "aborted")


HERE: dict[tuple[str, str], tuple[Any, Seen]] = {
    ("before_turn", "prompt"): ({"prompt": "CHANGED"}, lambda talk, _: recorded(talk)[0] == "CHANGED"),
    ("before_turn", "inject"): ({"inject": ["CHANGED"]}, lambda talk, _: recorded(talk)[1] == "CHANGED"),
    ("before_turn", "tools"): ({"tools": ()}, lambda talk, _: "Denied" in talk.texts()[0]),
    ("before_turn", "abort"): (Abort("CHANGED"), aborted),
    ("context", "messages"): ({"messages": (user("CHANGED"),)}, lambda talk, _: "CHANGED" in sent(talk)),
    ("context", "inject"): ({"inject": ["CHANGED"]}, lambda talk, _: "CHANGED" in sent(talk)),
    ("context", "abort"): (Abort("CHANGED"), aborted),
    ("before_provider_request", "system"): ({"system": "CHANGED"}, lambda talk, _: "CHANGED" in sent(talk)),
    ("before_provider_request", "tail"): ({"tail": "CHANGED"}, lambda talk, _: "CHANGED" in sent(talk)),
    ("before_provider_request", "abort"): (Abort("CHANGED"), aborted),
    ("after_provider_response", "text"): ({"text": "CHANGED"}, lambda talk, _: "CHANGED" in recorded(talk)),
    ("after_provider_response", "abort"): (Abort("CHANGED"), aborted),
    ("tool_call", "input"): ({"input": {"word": "changed"}}, lambda talk, _: talk.texts() == ["CHANGED"]),
    ("tool_call", "block"): (
        Block("CHANGED"),
        lambda talk, reply: "CHANGED" in talk.texts()[0] and not reply.tool_calls,
    ),
    ("tool_call", "abort"): (Abort("CHANGED"), aborted),
    ("tool_result", "text"): ({"text": "CHANGED"}, lambda talk, _: talk.texts() == ["CHANGED"]),
    ("tool_result", "is_error"): ({"is_error": True}, lambda talk, _: talk.results()[0].is_error),
    ("tool_result", "block"): (Block("CHANGED"), lambda talk, _: talk.texts() == ["[Withheld: CHANGED]"]),
    ("tool_result", "abort"): (Abort("CHANGED"), aborted),
    ("steering_received", "text"): ({"text": "CHANGED"}, lambda talk, _: "[Steering]\nCHANGED" in recorded(talk)),
    ("steering_received", "inject"): ({"inject": ["CHANGED"]}, lambda talk, _: "[Steering]\nCHANGED" in recorded(talk)),
    ("steering_received", "block"): (Block(), lambda talk, _: "psst" not in str(recorded(talk))),
    ("before_output", "text"): ({"text": "CHANGED"}, lambda _, reply: reply.text == "CHANGED"),
    ("before_output", "abort"): (Abort("CHANGED"), aborted),
}
"""What a hook says, and how that is seen in a turn with one call, to whose agent something is said meanwhile."""

ELSEWHERE: dict[str, tuple[str, ...]] = {
    "orchestrator/supervisor/test_phases.py::test_around_an_assessment": tuple(
        f"after_assess {action}" for action in ("note", "tools", "model")
    ),
    "orchestrator/supervisor/test_phases.py::test_abort_after_an_assessment": ("after_assess abort",),
    "orchestrator/supervisor/test_phases.py::test_a_blocked_reflection_is_not_made": ("before_reflect block",),
    "wire/test_phases.py::test_one_model_assesses_and_reflects_upon_another": ("before_reflect instructions",),
    "orchestrator/supervisor/test_phases.py::test_a_reflection_can_be_told_more_and_changed": (
        "after_reflect note",
        "after_reflect again",
    ),
    "orchestrator/supervisor/test_phases.py::test_a_blocked_reflection_says_nothing": ("after_reflect block",),
    "wire/test_model_router.py::test_another_model_answers_one_turn_and_the_own_one_the_next": ("before_turn model",),
    "worker/agent/test_turn_hooks.py::test_approve": ("tool_call approve",),
    "orchestrator/services/resources/test_prompts.py::test_hooks_change_the_prompt_of_a_turn": (
        "before_system_prompt add",
        "before_system_prompt drop",
    ),
    "worker/agent/test_turn_hooks.py::test_parts_of_the_prompt": ("before_system_prompt replace",),
    "worker/agent/test_turn_hooks.py::test_abort_while_the_prompt_is_made": tuple(
        f"{stage}_system_prompt abort" for stage in ("before", "after")
    ),
    "orchestrator/services/resources/test_prompts.py::test_the_system_text_of_a_turn": ("after_system_prompt text",),
    "integration/test_guard.py::test_long_results_go_to_handles": ("tool_result most",),
    "orchestrator/services/sessions/test_summarization_hook.py::test_a_function_of_the_program_can_want_it_too": (
        "step_start shorten",
    ),
    "worker/context/test_archiving_hooks.py::test_a_summary_that_a_hook_supplies_is_what_stays": (
        "before_archive summary",
    ),
    "worker/context/test_archiving_hooks.py::test_lines_are_added_to_the_receipt": ("before_archive inject",),
    "worker/context/test_archiving_hooks.py::test_a_blocked_archive_stays_in_the_conversation": (
        "before_archive block",
    ),
    "worker/context/test_archiving_hooks.py::test_a_compaction_can_be_cancelled_supplied_and_added_to": tuple(
        f"before_compaction {action}" for action in ("summary", "instructions", "inject", "block")
    ),
}
"""Tests that show the effects of what needs more than a turn."""


@pytest.mark.parametrize(("stage", "action"), HERE, ids=" ".join)
async def test_what_a_stage_honours_has_its_effect(stage: str, action: str) -> None:
    """What a hook says at a stage is seen where it counts."""
    said, seen = HERE[stage, action]
    talk = Hooked(Watched(CALL, "done"), on(stage, said))
    talk.waiting = ["psst"]
    reply = await talk.ask()
    assert seen(talk, reply)


def test_every_pair_has_its_effect_shown() -> None:
    """Whatever a stage honours is in one of the tables, and nothing else is."""
    pairs = {(stage.name, action) for stage in STAGES.values() for action in stage.actions("control")}
    elsewhere = [tuple(pair.split()) for shown in ELSEWHERE.values() for pair in shown]
    assert len(elsewhere) == len(set(elsewhere))
    assert pairs == HERE.keys() | set(elsewhere)
    for test in ELSEWHERE:
        path, _, name = test.partition("::")
        assert f"def {name}(" in (ROOT / "tests" / path).read_text(), test


@pytest.mark.parametrize(
    "decision",
    [Block(None), Block("\ud800"), Block(5), Refused("no", 7)],  # type: ignore[arg-type]
)
async def test_a_decision_stands_whatever_its_reason_is(decision: Block) -> None:
    """One whose reason is no text blocks without one."""
    talk = Hooked(Watched(TWO, "done"), on("tool_call", decision, on_error="open"))
    assert (await talk.ask()).text == "done"
    assert all("was not run" in text for text in talk.texts())
