"""Text of archives, search hits and archived messages."""

from __future__ import annotations

from . import terminal
from .columns import cut, escape, format_columns, output_width, wrap

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

__all__ = ["ARCHIVE_LIST", "entry_range", "numbered_entries", "pages", "search_hits", "table"]

HEAD = ("ID", "KIND", "AGENT", "AGE", "MESSAGES", "TURNS", "TOKENS", "")
RIGHT = frozenset({3, 4, 5, 6})
ARCHIVE_LIST = "orch archive list"


def table(rows: list[dict[str, Any]], now: float | None = None) -> str:
    """Return archives as a table."""
    cells = [
        [
            *(row["id"], row["kind"], row["owner"], terminal.age(row["created_at"], now)),
            *(
                str(row["messages"]),
                str(row["turns"]),
                terminal.count(row["tokens"]),
                terminal.one_line(row["task"]),
            ),
        ]
        for row in rows
    ]
    return format_columns([list(HEAD), *cells], RIGHT, text={7})


def search_hits(hits: list[dict[str, Any]]) -> str:
    """Return search hits, each with its passage. The records of imported sessions follow."""
    sessions = {hit["id"]: hit for hit in hits if hit.get("source")}
    return "\n\n".join([*map(_hit, hits), *map(_session, sessions.values())])


def _session(hit: dict[str, Any]) -> str:
    """Return the record of the imported session of a hit."""
    name = f"session {hit['id']} ("
    title = _shortened(name, hit["session"], ")")
    head = wrap(f"{name}{title}), {escape(hit['source'])}", output_width())
    return "\n".join([*head, *_indented(hit["record"])])


def _hit(hit: dict[str, Any]) -> str:
    likeness = "" if hit["exact"] else ", similar"
    age, title = "", hit["task"]
    if hit.get("source"):  # an imported session
        age, title = f"turn {hit['turn']}, {hit['date'][:10]}; ", hit["session"]
    elif hit.get("turn"):
        turns = hit["age"]
        ago = "this turn" if not turns else f"{turns} turn{'s' if turns > 1 else ''} ago"
        age = f"turn {hit['turn']}, {ago}; "
    start, end = f"{hit['id']} entry {hit['entry']} ({age}", f"){likeness}"
    return "\n".join([f"{start}{_shortened(start, title, end)}{end}", *_indented(hit["text"])])


def _shortened(start: str, text: str, end: str) -> str:
    """Return `text` as one line that fits between `start` and `end` on a terminal."""
    width = output_width()
    return cut(terminal.one_line(text), None if width is None else max(1, width - len(start) - len(end)))


def _indented(text: str) -> list[str]:
    return wrap(terminal.safe_for_stdout(text), output_width(), "  ")


def numbered_entries(
    messages: list[dict[str, Any]], id: str, first: int, command: str = ARCHIVE_LIST
) -> list[dict[str, Any]]:
    """Add entry numbers, beginning with `first`, to messages of an archive.

    Raises EntryNotFoundError if there are none. `command` lists the archives with their numbers of entries.
    """
    if not messages:
        from orch_protocol.core.errors import EntryNotFoundError

        raise EntryNotFoundError(f"archive {id} has no entry {first}: {command} shows how many it has")
    return [{"entry": number, **message} for number, message in enumerate(messages, first)]


def pages(entries: list[dict[str, Any]]) -> str:
    """Return archived messages as text, one below another."""
    return "\n\n".join(f"[entry {entry['entry']}] {entry['role']}\n{terminal.message(entry)}" for entry in entries)


def entry_range(text: str) -> tuple[int, int | None]:
    """Return the first and last entry of the range `text`.

    The last entry is None for an open range. Raises ConfigError.
    """
    start, dash, end = text.partition("-")
    try:
        first = int(start)
        last = (int(end) if end else None) if dash else first
    except ValueError:
        first, last = 0, None
    if first < 1 or (last is not None and last < first):
        from orch_protocol.core.errors import ConfigError

        raise ConfigError(f"invalid range of entries {text!r}: use 3, 3-7 or 3-")
    return first, last
