"""The line below the prompt: which agent and model, how full its context is, what it cost, who works on what."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Final

from ..render import terminal
from .text.styled_text import Piece, truncate

__all__ = ["descendants", "format_status_bar", "live_descendants"]

FULL: Final = ((90, "error"), (75, "ask"))
"""From which share of its window on the context's meter is shown how."""
NAME: Final = 24
DOING: Final = 40
ENDED: Final = ("killed", "failed")


def descendants(rows: Sequence[dict[str, Any]], id: str) -> list[dict[str, Any]]:
    """Return those of `rows`, parents before their children, that stand below the agent `id`."""
    within = {id}
    found = []
    for row in rows:
        if row["parent_id"] in within:
            within.add(row["id"])
            found.append(row)
    return found


def live_descendants(rows: Sequence[dict[str, Any]], id: str) -> list[dict[str, Any]]:
    """Return those below the agent `id` that would go on living without it."""
    return [row for row in descendants(rows, id) if row["kind"] != "holder" and row["status"] not in ENDED]


def format_status_bar(
    rows: Sequence[dict[str, Any]],
    id: str,
    width: int,
    *,
    working: float | None = None,
    widgets: Sequence[str] = (),
    now: float | None = None,
) -> list[Piece]:
    """Return the line as it fits into `width`. `working` is for how many seconds the turn has been under way,
    `widgets` what extensions say."""
    row = next((row for row in rows if row["id"] == id), None)
    if row is None:
        return truncate([("note", "(no word of the agent: it was ended, or its daemon is gone)")], width)
    parts = [[part] for part in _own(row, working)]
    parts += [[("", each)] for each in widgets]
    at_work = [each for each in live_descendants(rows, id) if each["pending"] is not None]
    if others := live_descendants(rows, id):
        parts.append([("", f"{terminal.pluralize(len(others), 'subagent')}, {len(at_work)} at work")])
    parts += [[("note", _doing(each, now))] for each in at_work]
    return truncate(_joined(parts), width)


def _own(row: dict[str, Any], working: float | None) -> Iterator[Piece]:
    model = f" {terminal.truncate_line(row['model'], NAME)}" if row["model"] else ""
    yield "strong", f"{terminal.truncate_line(row['name'], NAME)}{model}"
    if working is not None:  # first of all, in a narrow window
        doing = f": {terminal.truncate_line(row['activity'], DOING)}" if row["activity"] else ""
        yield "call", f"works {working:.0f}s{doing}"
    if meter := _meter(row):
        yield meter
    floor = "" if row["tree_usage"].get("cost_known", True) else ">="
    yield "", f"{floor}${row['tree_usage']['cost_usd']:.4f}"
    if row["planning"]:
        yield "ask", "plan mode"


def _meter(row: dict[str, Any]) -> Piece | None:
    if not row["context_tokens"]:
        return None
    limit = row["context_limit"]
    share = row["context_tokens"] * 100 // limit if limit else 0
    style = next((style for least, style in FULL if share >= least), "")
    return style, f"context {terminal.context(row)}{f' {share} %' if limit else ''}"


def _doing(row: dict[str, Any], now: float | None) -> str:
    doing = terminal.truncate_line(row["activity"] or row["status"], DOING)
    return f"{terminal.truncate_line(row['name'], NAME)}: {doing} {terminal.age(row['last_activity'], now)}"


def _joined(parts: Sequence[Sequence[Piece]]) -> Iterator[Piece]:
    for number, part in enumerate(parts):
        if number:
            yield "note", " · "
        yield from part
