"""The status bar with agent, model, context use, cost, and working subagents."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Final

from ..render import terminal
from .text.styled_text import Piece, display_width, truncate

__all__ = ["descendants", "format_status_bar", "live_descendants"]

METER_STYLES: Final = ((90, "error"), (75, "ask"))
"""The styles of the context meter. Each style applies from a minimum percentage of the context window."""
NAME_WIDTH: Final = 40
MAX_ROWS: Final = 3
SEPARATOR: Final = " · "
ACTIVITY_WIDTH: Final = 40
ENDED: Final = ("killed", "failed")


def descendants(rows: Sequence[dict[str, Any]], id: str) -> list[dict[str, Any]]:
    """Return the rows of the descendants of agent `id`, parents before children."""
    ids = {id}
    found = []
    for row in rows:
        if row["parent_id"] in ids:
            ids.add(row["id"])
            found.append(row)
    return found


def live_descendants(rows: Sequence[dict[str, Any]], id: str) -> list[dict[str, Any]]:
    """Return the rows of the descendants of agent `id` that are not killed, failed or holders."""
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
    """Return the status bar for `width` columns. `working` is the duration of the turn in seconds.

    `widgets` are the texts of extensions. The bar has as many rows as its parts need, at most MAX_ROWS. The last row
    then ends with the number of parts that are not shown.
    """
    row = next((row for row in rows if row["id"] == id), None)
    if row is None:
        return truncate([("note", "(no data about the agent: it was killed, or its daemon has ended)")], width)
    parts = [[part] for part in _agent_parts(row, working)]
    parts += [[("", each)] for each in widgets]
    working_rows = [each for each in live_descendants(rows, id) if each["pending"] is not None]
    if live_rows := live_descendants(rows, id):
        parts.append([("", f"{terminal.pluralize(len(live_rows), 'subagent')}, {len(working_rows)} at work")])
    parts += [[("note", _format_activity(each, now))] for each in working_rows]
    return _join_rows(parts, width)


def _agent_parts(row: dict[str, Any], working: float | None) -> Iterator[Piece]:
    model = f" {terminal.truncate_line(row['model'], NAME_WIDTH)}" if row["model"] else ""
    yield "strong", f"{terminal.truncate_line(row['name'], NAME_WIDTH)}{model}"
    if working is not None:  # early, so that a narrow window shows it
        activity = f": {terminal.truncate_line(row['activity'], ACTIVITY_WIDTH)}" if row["activity"] else ""
        yield "call", f"works {working:.0f}s{activity}"
    if meter := _meter(row):
        yield meter
    yield "", terminal.format_cost(row["tree_usage"])
    if row["planning"]:
        yield "ask", "plan mode"


def _meter(row: dict[str, Any]) -> Piece | None:
    if not row["context_tokens"]:
        return None
    limit = row["context_limit"]
    percent = row["context_tokens"] * 100 // limit if limit else 0
    style = next((style for minimum, style in METER_STYLES if percent >= minimum), "")
    return style, f"context {terminal.context(row)}{f' {percent} %' if limit else ''}"


def _format_activity(row: dict[str, Any], now: float | None) -> str:
    activity = terminal.truncate_line(row["activity"] or row["status"], ACTIVITY_WIDTH)
    return f"{terminal.truncate_line(row['name'], NAME_WIDTH)}: {activity} {terminal.age(row['last_activity'], now)}"


def _join_rows(parts: Sequence[Sequence[Piece]], width: int) -> list[Piece]:
    rows: list[list[Piece]] = [[]]
    for number, part in enumerate(parts):
        joined = [*rows[-1], *([("note", SEPARATOR)] if rows[-1] else []), *part]
        is_last_row, left = len(rows) == MAX_ROWS, len(parts) - number - 1
        rest = len(f"{SEPARATOR}{_more(left)}") if is_last_row and left else 0
        if not rows[-1] or _width(joined) + rest <= width:
            rows[-1] = joined
        elif not is_last_row:
            rows.append([*part])
        else:
            rows[-1] += [("note", f"{SEPARATOR}{_more(left + 1)}")]
            break
    bar: list[Piece] = []
    for row in rows:
        bar += [*([("", "\n")] if bar else []), *truncate(row, width)]
    return bar


def _width(pieces: Sequence[Piece]) -> int:
    return sum(display_width(text) for _, text in pieces)


def _more(parts: int) -> str:
    return f"{parts} more"
