"""The block that tells a model which subagents there are. Rendered anew for each request, never stored."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from msgspec import Struct

__all__ = ["HEADING", "LiveSubagent", "live_block"]

HEADING: Final = "# Live Subagents"

_WHAT: Final = """\
They hold archived turns of this conversation, whole. search_archive finds a detail, read_archive shows it exactly."""
_ASK: Final = "query_subagent asks one of them."


class LiveSubagent(Struct, frozen=True):
    """One line of the block."""

    id: str
    task: str


def live_block(live: Sequence[LiveSubagent], limit: int, children: Sequence[LiveSubagent] = ()) -> str:
    """Return the block for the holders `live`, oldest first: the latest `limit` of them, and how many more there are.

    `children` are agents that work for this one, and stand before them. "" when there is nobody, so that a conversation
    without archives is not changed by a byte.
    """
    shown = live[-limit:] if limit else live[:0]
    if not shown and not children:
        return ""
    parts = [HEADING]
    if children:
        parts += [_ASK, "\n".join(map(_line, children))]
    if shown:
        lines = list(map(_line, shown))
        if more := len(live) - len(shown):
            lines.append(f"and {more} more: search_archive finds the rest")
        parts += [_WHAT, "\n".join(lines)]
    return "\n\n".join(parts)


def _line(live: LiveSubagent) -> str:
    return f"- id: {live.id} | task: {' '.join(live.task.split())}"
