"""What an assessment of a prompt comes to, by rules or by a model's words. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Annotated, Final

from msgspec import Meta, Struct

from orch_protocol.core.phases import Assess, AssessRule

from ..tools.dispatch.presets import CATEGORIES, NOTES, PRESETS, RECALL
from .phase_prompts import understood

__all__ = ["Assessment", "by_rules", "kept_tools", "of_words", "question", "system"]

MOST_NOTE: Final = 2_000
MOST_PROMPT: Final = 12_000
LOOKING: Final = frozenset((*PRESETS["investigate"], *CATEGORIES["tasks"], *NOTES, *RECALL, "exit_plan_mode"))
"""What an agent that is to plan first may use."""
IN_PRESETS: Final = frozenset(name for names in PRESETS.values() for name in names)
PLAN_FIRST: Final = (
    "Plan first: in this turn you may look, and change and run nothing. Answer with a plan, step by step, that says "
    "what will be changed, how it is checked, and how it is undone."
)
SYSTEM: Final = """\
You look at what an agent is asked before it sets to work. Answer with one JSON object and nothing else:
{{"note": "...", "plan": false, "preset": "", "model": ""}}

note: at most three sentences that will help the agent: what is easily missed, what to check. "" when there is \
nothing that it would not see itself.
plan: true when what is asked can do harm that is hard to undo, or is so large that somebody should see a plan first.
preset: which tools it needs: {presets}; "" for all that it has.
model: {models}"""


class Assessment(Struct, frozen=True):
    """What is to be done about a prompt: what the agent is told, and what it may use; "" and False are nothing."""

    note: str = ""
    plan: bool = False
    preset: str = ""
    model: str = ""

    @property
    def did(self) -> tuple[str, ...]:
        """What it comes to, in words."""
        named = (("preset", self.preset), ("model", self.model))
        said = [word for word, there in (("note", self.note), ("plan", self.plan)) if there]
        return (*said, *(f"{name} {value}" for name, value in named if value))

    @property
    def told(self) -> str:
        """What the agent is told."""
        return "\n".join(each for each in (self.note, PLAN_FIRST if self.plan else "") if each)


class _AssessmentReply(Struct):
    """What a model is to answer."""

    note: Annotated[str, Meta(max_length=MOST_NOTE)] = ""
    plan: bool = False
    preset: str = ""
    model: str = ""


def by_rules(rules: Iterable[AssessRule], prompt: str) -> Assessment | None:
    """Return what the first rule says that fits `prompt`, None when none does."""
    words = len(prompt.split())
    for rule in rules:
        if words >= rule.words and re.search(rule.match, prompt):
            return Assessment(rule.note, rule.plan, rule.preset, rule.model)
    return None


def system(settings: Assess) -> str:
    """Return what a model is told that is to assess prompts."""
    models = f'one of {", ".join(settings.models)}; "" to leave it as it is' if settings.models else '""'
    return SYSTEM.format(presets=", ".join(name for name in PRESETS if name != "holder"), models=models)


def question(prompt: str, tools: Iterable[str]) -> str:
    """Return what a model is asked about `prompt`."""
    return f"The agent has these tools: {', '.join(tools) or 'none'}. It is asked:\n\n{prompt[:MOST_PROMPT]}"


def of_words(settings: Assess, said: str) -> Assessment:
    """Return what a model's answer comes to. Raises ValueError for one that is none."""
    words = understood(said, _AssessmentReply)
    if words.preset and words.preset not in PRESETS:
        raise ValueError(f"there is no preset {words.preset!r}")
    if words.model and words.model not in settings.models:
        raise ValueError(f"the model {words.model!r} is not among hooks.assess.models")
    return Assessment(words.note.strip(), words.plan, words.preset, words.model)


def kept_tools(assessment: Assessment, active: Iterable[str]) -> tuple[str, ...]:
    """Return which of the tools `active` may be used: a preset says so of tools that are in presets, a plan of all."""
    chosen = PRESETS[assessment.preset] if assessment.preset else None
    return tuple(
        name
        for name in active
        if (chosen is None or name in chosen or name not in IN_PRESETS) and (not assessment.plan or name in LOOKING)
    )
