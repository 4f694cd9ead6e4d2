"""Assess a prompt by rules or with a model's answer. This module does no I/O."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Annotated, Final

from msgspec import Meta, Struct

from orch_protocol.core.phases import Assess, AssessRule

from ..tools.dispatch.presets import CATEGORIES, NOTES, PRESETS, RECALL
from .side_requests import parse_answer

__all__ = ["Assessment", "allowed_tools", "apply_rules", "parse_result", "request_text", "system_text"]

MAX_NOTE: Final = 2_000
MAX_PROMPT: Final = 12_000
PLANNING_TOOLS: Final = frozenset((*PRESETS["investigate"], *CATEGORIES["tasks"], *NOTES, *RECALL, "exit_plan_mode"))
"""Tools that an agent may use while it plans."""
PRESET_TOOLS: Final = frozenset(name for names in PRESETS.values() for name in names)
PLAN_FIRST: Final = (
    "Plan first: in this turn you may read, but do not change or run anything. Answer with a plan in steps. The plan "
    "says what will be changed, how the change is checked, and how it is undone."
)
SYSTEM: Final = """\
You assess a prompt before an agent starts to work on it. Answer with one JSON object and nothing else:
{{"note": "...", "plan": false, "preset": "", "model": ""}}

note: at most three sentences that help the agent: what is easily missed, and what to check. "" if the agent would \
see all of this itself.
plan: true if the request can cause damage that is hard to undo, or is so large that a person should see a plan first.
preset: the tools that the agent needs: {presets}; "" for all tools of the agent.
model: {models}"""


class Assessment(Struct, frozen=True):
    """The result of an assessment: a note for the agent, and restrictions. "" and False mean no change."""

    note: str = ""
    plan: bool = False
    preset: str = ""
    model: str = ""

    @property
    def actions(self) -> tuple[str, ...]:
        """The actions of the assessment, as words."""
        settings = (("preset", self.preset), ("model", self.model))
        actions = [word for word, is_set in (("note", self.note), ("plan", self.plan)) if is_set]
        return (*actions, *(f"{name} {value}" for name, value in settings if value))

    @property
    def text_for_agent(self) -> str:
        """The text for the agent."""
        return "\n".join(each for each in (self.note, PLAN_FIRST if self.plan else "") if each)


class _AssessmentReply(Struct):
    """The format of the model's answer."""

    note: Annotated[str, Meta(max_length=MAX_NOTE)] = ""
    plan: bool = False
    preset: str = ""
    model: str = ""


def apply_rules(rules: Iterable[AssessRule], prompt: str) -> Assessment | None:
    """Return the assessment of the first rule that matches `prompt`, or None."""
    word_count = len(prompt.split())
    for rule in rules:
        if word_count >= rule.words and re.search(rule.match, prompt):
            return Assessment(rule.note, rule.plan, rule.preset, rule.model)
    return None


def system_text(settings: Assess) -> str:
    """Return the system text for a model that assesses prompts."""
    models = f'one of {", ".join(settings.models)}; "" to leave it as it is' if settings.models else '""'
    return SYSTEM.format(presets=", ".join(name for name in PRESETS if name != "holder"), models=models)


def request_text(prompt: str, tools: Iterable[str]) -> str:
    """Return the request that asks a model to assess `prompt`."""
    return f"The agent has these tools: {', '.join(tools) or 'none'}. It is asked:\n\n{prompt[:MAX_PROMPT]}"


def parse_result(settings: Assess, text: str) -> Assessment:
    """Return the assessment that a model's answer `text` contains. Raise ValueError for an invalid answer."""
    reply = parse_answer(text, _AssessmentReply)
    if reply.preset and reply.preset not in PRESETS:
        raise ValueError(f"unknown preset {reply.preset!r}")
    if reply.model and reply.model not in settings.models:
        raise ValueError(f"the model {reply.model!r} is not among hooks.assess.models")
    return Assessment(reply.note.strip(), reply.plan, reply.preset, reply.model)


def allowed_tools(assessment: Assessment, active: Iterable[str]) -> tuple[str, ...]:
    """Return the tools of `active` that stay available under `assessment`.

    A preset removes only tools that belong to some preset. A plan may remove any tool.
    """
    preset_tools = PRESETS[assessment.preset] if assessment.preset else None
    return tuple(
        name
        for name in active
        if (preset_tools is None or name in preset_tools or name not in PRESET_TOOLS)
        and (not assessment.plan or name in PLANNING_TOOLS)
    )
