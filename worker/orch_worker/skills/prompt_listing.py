"""The list of skills in the prompt: names and descriptions within a token limit. This module does no I/O."""

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
"""Maximum lengths of descriptions. The first length with which all lines fit is used."""
MORE_LINE: Final = f"- and {{count}} more: {READ_SKILL} without a name lists all"


def skill_index(skills: Sequence[SkillSpec], tokens: int, estimator: TokenEstimator) -> str:
    """Return one line for each of `skills`, in at most `tokens` tokens.

    If the lines are too long, descriptions are shortened first, and then left out. If this is not sufficient, names are
    left out.
    """
    for width in WIDTHS:
        text = _with_heading([line_of(skill, width) for skill in skills])
        if estimator.text(text) <= tokens:
            return text
    shown = len(skills)
    while True:
        lines = [f"- {skill.name}" for skill in skills[:shown]]
        text = _with_heading([*lines, *([MORE_LINE.format(count=len(skills) - shown)] if shown < len(skills) else [])])
        size = estimator.text(text)
        if size <= tokens or not shown:
            return text
        shown = min(shown - 1, shown * tokens // size)


def line_of(skill: SkillSpec, width: int = WIDTHS[0]) -> str:
    """Return the line about `skill`, with at most `width` characters of its description."""
    return f"- {skill.name}: {plain_line(' '.join(skill.description.split()), width)}"


def _with_heading(lines: Sequence[str]) -> str:
    return "\n".join((HEADING, "", *lines))
