"""The block that tells a model which subagents there are. Rendered anew for each request, never stored."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from msgspec import Struct

__all__ = ["HEADING", "Live", "live_block"]

HEADING: Final = "# Live Subagents"

_WHAT: Final = """\
They hold archived turns of this conversation, whole. search_archive finds a detail, read_archive shows it exactly."""


class Live(Struct, frozen=True):
    """One line of the block."""

    id: str
    task: str


def live_block(live: Sequence[Live], limit: int) -> str:
    """Return the block for `live`, oldest first: the latest `limit` of them, and how many more there are.

    "" when there is none, so that a conversation without archives is not changed by a byte.
    """
    if not live or not limit:
        return ""
    shown = live[-limit:]
    lines = [f"- id: {each.id} | task: {' '.join(each.task.split())}" for each in shown]
    if more := len(live) - len(shown):
        lines.append(f"and {more} more: search_archive finds the rest")
    return "\n".join([HEADING, "", _WHAT, "", *lines])
