"""Settings of two phases: assessment of the prompt before a turn, and reflection on the outcome at the end of
the turn.
"""

from __future__ import annotations

import re
from typing import Annotated, Literal, TypeAlias

from msgspec import Meta, Struct

__all__ = ["Assess", "AssessRule", "By", "Phase", "PhaseKind", "Reflect", "ReflectRule", "When"]

Phase: TypeAlias = Literal["assess", "reflect"]
By: TypeAlias = Literal["rule", "model"]
PhaseKind: TypeAlias = Literal["off", "rule", "model"]
When: TypeAlias = Literal["always", "on_failure"]
Count = Annotated[int, Meta(ge=1, le=1000)]
Tokens = Annotated[int, Meta(ge=2000, le=10**7)]
Dollars = Annotated[float, Meta(gt=0, le=1e6)]
Seconds = Annotated[float, Meta(gt=0, le=600)]


class AssessRule(Struct, frozen=True, forbid_unknown_fields=True):
    """A rule for prompts that match the regular expression `match` and have at least `words` words.

    `note` is a text that the agent receives with the prompt. If `plan` is True, the turn runs in plan mode. `preset`
    limits the turn to the built-in tools of this preset. `model` is the model for the turn.
    """

    match: str = ""
    words: Annotated[int, Meta(ge=0)] = 0
    note: str = ""
    plan: bool = False
    preset: str = ""
    model: str = ""

    def __post_init__(self) -> None:
        _check_pattern("match", self.match)


class ReflectRule(Struct, frozen=True, forbid_unknown_fields=True):
    """A rule for the turns that meet all conditions of the rule.

    `reply`: a regular expression that matches the reply. `changed`: a pattern that matches a changed file. `failed`:
    the minimum number of failed calls. `note` is added to the reply. If `again` is True, the note is sent to the agent
    instead, and the agent continues.
    """

    reply: str = ""
    changed: str = ""
    failed: Annotated[int, Meta(ge=0)] = 0
    note: Annotated[str, Meta(pattern=r"\S")] = "Check it once more."
    again: bool = False

    def __post_init__(self) -> None:
        _check_pattern("reply", self.reply)


class Assess(Struct, frozen=True, forbid_unknown_fields=True):
    """Whether and how prompts are assessed before a turn begins."""

    kind: PhaseKind = "off"
    when: When = "always"
    """When to assess. `on_failure`: only after a turn that was cut short or ended without an answer."""
    every_turns: Count = 1
    """Assess the prompt of every n-th turn of a conversation."""
    rules: tuple[AssessRule, ...] = ()
    """Rules of an assessment of kind `rule`. The first rule that matches applies."""
    model: str | None = None
    """The model that assesses: `provider:name` or `local`. None means the agent's own model."""
    models: tuple[str, ...] = ()
    """Models from which the assessment may choose one for the turn."""
    max_tokens: Tokens = 8_000
    """Maximum tokens of one assessment, request and response together."""
    max_cost_usd: Dollars | None = None
    seconds: Seconds = 30.0


class Reflect(Struct, frozen=True, forbid_unknown_fields=True):
    """Whether and how an agent reflects on the outcome of a turn before it replies."""

    kind: PhaseKind = "off"
    when: When = "always"
    """When to reflect.

    `on_failure`: only if the last call failed, the reply is empty, or the turn ended without an answer.
    """
    every_turns: Count = 1
    """Reflect on every n-th turn of a conversation."""
    rules: tuple[ReflectRule, ...] = ()
    """Rules of a reflection of kind `rule`. The first rule that matches applies.

    If there are no rules, an agent whose last call failed is asked to continue.
    """
    model: str | None = None
    """The model that reflects: `provider:name` or `local`. None means the agent's own model."""
    max_continuations: Annotated[int, Meta(ge=0, le=20)] = 1
    """Maximum number of times that one turn is continued after reflection."""
    max_tokens: Tokens = 12_000
    """Maximum tokens of one reflection, request and response together."""
    max_cost_usd: Dollars | None = None
    seconds: Seconds = 30.0


def _check_pattern(name: str, pattern: str) -> None:
    try:
        re.compile(pattern)
    except re.error as error:
        raise ValueError(f"{name} = {pattern!r} is not a valid regular expression: {error}") from error
