"""What an agent is told of its skills before it reads one: names, and what each is for, in so many tokens. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from orch_protocol.core.text import plain_line
from orch_protocol.resources.skills import READ_SKILL, SkillSpec

from ..conversation.tokens import TokenEstimator

__all__ = ["HEADING", "line_of", "skill_index"]

HEADING: Final = f"""\
# Skills

Instructions for particular work. When your task is of such a kind, read the skill with {READ_SKILL} before you begin, \
and go by it."""
WIDTHS: Final = (1024, 500, 250, 120, 60)
"""How long descriptions are, the first of these that fits."""
MORE: Final = f"- and {{count}} more: {READ_SKILL} without a name lists all"


def skill_index(skills: Sequence[SkillSpec], tokens: int, estimator: TokenEstimator) -> str:
    """Return a line for each of `skills` within `tokens`: descriptions are cut alike, then left out, then names."""
    for width in WIDTHS:
        text = _text([line_of(skill, width) for skill in skills])
        if estimator.text(text) <= tokens:
            return text
    kept = len(skills)
    while True:
        lines = [f"- {skill.name}" for skill in skills[:kept]]
        text = _text([*lines, *([MORE.format(count=len(skills) - kept)] if kept < len(skills) else [])])
        size = estimator.text(text)
        if size <= tokens or not kept:
            return text
        kept = min(kept - 1, kept * tokens // size)


def line_of(skill: SkillSpec, width: int = WIDTHS[0]) -> str:
    """Return the line about `skill`, with at most `width` characters of its description, on one line."""
    return f"- {skill.name}: {plain_line(' '.join(skill.description.split()), width)}"


def _text(lines: Sequence[str]) -> str:
    return "\n".join((HEADING, "", *lines))
