"""Renders the live-subagents block. The block is rendered for each request and never stored."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from msgspec import Struct

__all__ = ["HEADING", "LiveSubagent", "live_block"]

HEADING: Final = "# Live Subagents"

_WHAT: Final = """\
They hold archived turns of this conversation, whole. search_archive finds a detail, read_archive shows it exactly."""
_ASK: Final = "Your subagents. query_subagent asks one by its id; list_subagents shows their status."


class LiveSubagent(Struct, frozen=True):
    """One line of the live-subagents block."""

    id: str
    task: str


def live_block(live: Sequence[LiveSubagent], limit: int, children: Sequence[LiveSubagent] = ()) -> str:
    """Return the live-subagents block.

    `live` are the archive holders, oldest first. The block lists the latest `limit` holders and gives the number of the
    others. The subagents `children` are listed before the holders. Return "" if both lists are empty.
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
