"""Renders the live-subagents block. The block is rendered for each request and never stored."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from msgspec import Struct

__all__ = ["ARCHIVES", "HEADING", "LiveSubagent", "archives_block", "live_block"]

HEADING: Final = "# Live Subagents"
ARCHIVES: Final = "# Archived turns"

_HELD: Final = "These subagents hold archived prior turns of this conversation."
_DETAIL: Final = "search_archive finds a detail, read_archive shows it exactly."
_QUERY: Final = "query_subagent(id, prompt) asks one."
_SPAWN: Final = "spawn_subagent(task) starts a new one to fan out."
_NO_NEED: Final = "Do not query unless you actually need the detail."
_PLAIN: Final = f"Archived turns of this conversation, whole. {_DETAIL}"
_ASK: Final = "Your subagents. query_subagent asks one by its id; list_subagents shows their status."


class LiveSubagent(Struct, frozen=True):
    """One line of the live-subagents block."""

    id: str
    task: str


def live_block(
    live: Sequence[LiveSubagent],
    limit: int,
    children: Sequence[LiveSubagent] = (),
    *,
    may_spawn: bool = False,
    texts: str = "",
) -> str:
    """Return the live-subagents block.

    `live` are the archive holders, oldest first. The block lists the latest `limit` holders and gives the number of the
    others. The subagents `children` are listed before the holders. `may_spawn`: the agent can start subagents. `texts`
    is the folder with the texts of the archives, if the agent can read them. Return "" if both lists are empty.
    """
    shown = live[-limit:] if limit else live[:0]
    if not shown and not children:
        return ""
    parts = [HEADING]
    if children:
        parts += [_ASK, "\n".join(map(_line, children))]
    if shown:
        where = f"Their text is in {texts} (index.txt, turn-NNN.txt)." if texts else ""
        parts.append(" ".join(filter(None, (_HELD, _DETAIL, where, _QUERY, _SPAWN if may_spawn else "", _NO_NEED))))
        parts.append(_holder_lines(live, shown))
    return "\n\n".join(parts)


def archives_block(live: Sequence[LiveSubagent], limit: int) -> str:
    """Return the list of archives for a loop without subagents: the latest `limit` of `live`, which is oldest first."""
    shown = live[-limit:] if limit else live[:0]
    return "\n\n".join((ARCHIVES, _PLAIN, _holder_lines(live, shown))) if shown else ""


def _holder_lines(live: Sequence[LiveSubagent], shown: Sequence[LiveSubagent]) -> str:
    lines = list(map(_line, shown))
    if more := len(live) - len(shown):
        lines.append(f"and {more} more: search_archive finds the rest")
    return "\n".join(lines)


def _line(live: LiveSubagent) -> str:
    return f"- id: {live.id} | task: {' '.join(live.task.split())}"
