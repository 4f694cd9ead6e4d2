"""The effect of each action at each stage, as seen in a request, a tool call, the record or the reply."""

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
    """A subclass of Block, as a program can define it."""

    code: int = 0


def sent(talk: Hooked) -> str:
    """Return all requests to the model as text."""
    return str(talk.backend.sent)  # type: ignore[attr-defined]


def recorded(talk: Hooked) -> list[str]:
    """Return the texts of the recorded messages."""
    return [text_of(message) for message in talk.recorded]


def aborted(_talk: Hooked, reply: Reply) -> bool:
    """Return whether a hook ended the turn with the reply "CHANGED"."""
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
"""For each stage and action: the result of a hook, and a check of its effect in a turn with a call and a steering
message."""

ELSEWHERE: dict[str, tuple[str, ...]] = {
    "orchestrator/supervisor/test_phases.py::test_hook_changes_note_tools_and_model_of_an_assessment": tuple(
        f"after_assess {action}" for action in ("note", "tools", "model")
    ),
    "orchestrator/supervisor/test_phases.py::test_abort_after_an_assessment_records_only_the_reply": (
        "after_assess abort",
    ),
    "orchestrator/supervisor/test_phases.py::test_blocked_before_reflect_makes_no_request": ("before_reflect block",),
    "wire/test_phases.py::test_another_model_assesses_and_reflects": ("before_reflect instructions",),
    "orchestrator/supervisor/test_phases.py::test_hook_instructs_and_changes_a_reflection": (
        "after_reflect note",
        "after_reflect again",
    ),
    "orchestrator/supervisor/test_phases.py::test_blocked_after_reflect_drops_the_note": ("after_reflect block",),
    "wire/test_model_router.py::test_routed_model_answers_one_turn": ("before_turn model",),
    "worker/agent/test_turn_hooks.py::test_hook_approval_replaces_the_question_to_the_user": ("tool_call approve",),
    "orchestrator/services/resources/test_prompts.py::test_hooks_add_and_drop_prompt_parts": (
        "before_system_prompt add",
        "before_system_prompt drop",
    ),
    "worker/agent/test_turn_hooks.py::test_hooks_add_replace_and_drop_prompt_parts": ("before_system_prompt replace",),
    "worker/agent/test_turn_hooks.py::test_abort_while_building_the_prompt_records_nothing": tuple(
        f"{stage}_system_prompt abort" for stage in ("before", "after")
    ),
    "orchestrator/services/resources/test_prompts.py::test_hook_changes_the_system_text_for_a_turn": (
        "after_system_prompt text",
    ),
    "orchestrator/api/test_registration.py::test_hooks_change_the_data_of_an_emitted_event": ("custom_event data",),
    "integration/test_guard.py::test_long_results_are_stored_under_handles": ("tool_result max_chars",),
    "orchestrator/services/sessions/test_summarization_hook.py::test_root_hook_can_request_summarization": (
        "step_start shorten",
    ),
    "worker/context/test_archiving_hooks.py::test_hook_summary_replaces_the_models_summary": (
        "before_archive summary",
    ),
    "worker/context/test_archiving_hooks.py::test_hook_lines_are_appended_to_the_receipt": ("before_archive inject",),
    "worker/context/test_archiving_hooks.py::test_archive_blocked_by_a_hook_stays_in_the_conversation": (
        "before_archive block",
    ),
    "worker/context/test_archiving_hooks.py::test_hooks_cancel_supply_or_extend_a_compaction": tuple(
        f"before_compaction {action}" for action in ("summary", "instructions", "inject", "block")
    ),
}
"""Tests of the actions whose effects cannot be seen in such a turn."""


@pytest.mark.parametrize(("stage", "action"), HERE, ids=" ".join)
async def test_every_honored_action_has_its_effect(stage: str, action: str) -> None:
    found, seen = HERE[stage, action]
    talk = Hooked(Watched(CALL, "done"), on(stage, found))
    talk.waiting = ["psst"]
    reply = await talk.ask()
    assert seen(talk, reply)


def test_every_stage_and_action_is_covered_by_a_table() -> None:
    """The tables list exactly the actions that the stages support, and each listed test exists."""
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
async def test_decision_with_a_non_text_reason_still_blocks(decision: Block) -> None:
    """The call does not run, and the turn continues."""
    talk = Hooked(Watched(TWO, "done"), on("tool_call", decision, on_error="open"))
    assert (await talk.ask()).text == "done"
    assert all("was not run" in text for text in talk.texts())
