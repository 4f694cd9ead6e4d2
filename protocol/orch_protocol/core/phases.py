"""What is done around a turn beside the turn itself: its prompt is assessed, its outcome reflected upon. As data."""

from __future__ import annotations

import re
from typing import Annotated, Literal, TypeAlias

from msgspec import Meta, Struct, field

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
    """What a turn is given whose prompt has a place that `match` fits, a regular expression, and at least `words`.

    `note` is told to the agent; with `plan` it may only look, and is to hand in a plan; of `preset` are the built-in
    tools that it may use; `model` answers.
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
    """What becomes of a turn that fits it.

    Its reply has a place that `reply` fits, a regular expression, it changed a file that the pattern `changed` fits,
    and of its calls at least `failed` failed. `note` stands behind the reply, or with `again` is told to the agent,
    which then goes on.
    """

    reply: str = ""
    changed: str = ""
    failed: Annotated[int, Meta(ge=0)] = 0
    note: Annotated[str, Meta(pattern=r"\S")] = "Check it once more."
    again: bool = False

    def __post_init__(self) -> None:
        _check_pattern("reply", self.reply)


class Assess(Struct, frozen=True, forbid_unknown_fields=True):
    """Whether prompts are assessed before a turn begins, and by whom."""

    kind: PhaseKind = "off"
    when: When = "always"
    """`on_failure`: after a turn alone that was cut short, or ended otherwise than by an answer."""
    every_turns: Count = field(default=1, name="every")
    """Run in every n-th turn of a conversation."""
    rules: tuple[AssessRule, ...] = ()
    """For kind `rule`: the first that fits."""
    model: str | None = None
    """Who is asked, `provider:name` or `local`; unset: the agent's own."""
    models: tuple[str, ...] = ()
    """Those of which it may choose one for the turn."""
    max_tokens: Tokens = 8_000
    """What one assessment may take, question and answer together."""
    max_cost_usd: Dollars | None = None
    seconds: Seconds = 30.0


class Reflect(Struct, frozen=True, forbid_unknown_fields=True):
    """Whether the outcome of a turn is reflected upon before the reply, and by whom."""

    kind: PhaseKind = "off"
    when: When = "always"
    """`on_failure`: when the last call failed, nothing was said, or the turn ended otherwise than by an answer."""
    every_turns: Count = field(default=1, name="every")
    """Run in every n-th turn of a conversation."""
    rules: tuple[ReflectRule, ...] = ()
    """For kind `rule`: the first that fits; without any, an agent whose last call failed is asked to go on."""
    model: str | None = None
    """Who is asked, `provider:name` or `local`; unset: the agent's own."""
    max_continuations: Annotated[int, Meta(ge=0, le=20)] = field(default=1, name="tries")
    """How many times the agent may be told to continue."""
    max_tokens: Tokens = 12_000
    """What one reflection may take, question and answer together."""
    max_cost_usd: Dollars | None = None
    seconds: Seconds = 30.0


def _check_pattern(name: str, pattern: str) -> None:
    try:
        re.compile(pattern)
    except re.error as error:
        raise ValueError(f"{name} = {pattern!r} is not a valid regular expression: {error}") from error
