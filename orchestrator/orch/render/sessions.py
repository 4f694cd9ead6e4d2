"""Sessions as a table, a page and a tree. Also formats the result of a compaction."""

from __future__ import annotations

from . import terminal
from .columns import format_columns

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

__all__ = ["LAST", "latest", "page", "table", "tree_lines"]

BY = {"model": "a model's summary", "hook": "a hook's summary", "extract": "what was asked and answered"}
HEAD = ("SEQ", "ID", "NAME", "STATUS", "ACTIVE", "QUERIES", "TITLE OR TASK")
RIGHT = frozenset({0, 4, 5})
BRANCHES = ("", "END", "FROM", "ENTRIES", "TEXT", "")
LAST = 20
TEXT_TYPES = frozenset({"message", "custom_message", "branch_summary", "compaction", "lost"})
"""Entry types with text. Entries of other types are shown only with --all."""


def latest(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the agents that have a session, most recently active first."""
    return sorted((row for row in rows if row["kind"] != "holder"), key=lambda row: row["last_activity"], reverse=True)


def table(rows: list[dict[str, Any]]) -> str:
    """Return sessions as a table."""
    runs = any(row.get("run") for row in rows)
    cells = [
        [
            *("-" if row.get("run") else str(row["seq"]), row["id"]),
            *((terminal.one_line(row.get("run", "")),) if runs else ()),
            *(terminal.one_line(row["name"]), terminal.status(row)),
            *(terminal.age(row["last_activity"] or row["created_at"]), str(row["queries"])),
            terminal.one_line(row["title"] or row["task"]),
        ]
        for row in rows
    ]
    head = [*HEAD[:2], *(("RUN",) if runs else ()), *HEAD[2:]]
    right = [at + runs if at > 1 else at for at in RIGHT]
    return format_columns([head, *cells], right, text=[len(head) - 1])


def page(shown: dict[str, Any], now: float | None = None) -> str:
    """Return a session as a page with its properties, its branches, and its last entries."""
    facts = {
        "session": f"{shown['id']} ({terminal.truncate_line(shown['name'], 24)})",
        "title": terminal.truncate_line(shown["title"]),
        "folder": terminal.safe(shown["folder"]),
        "copy of": terminal.safe(shown["parent_session"] or ""),
        "model": terminal.safe(shown["model"]),
        "thinking": terminal.safe(shown["thinking"]),
        "entries": str(shown["count"]),
        "leaf": shown["leaf"] or "",
        "labels": ", ".join(f"{terminal.truncate_line(label)} {id}" for id, label in shown["labels"].items()),
    }
    lines = [f"{name:9} {value}" for name, value in facts.items() if value]
    if len(shown["branches"]) > 1:
        rows = [
            [
                *("*" if branch["current"] else "", branch["id"] or "root", branch["from_id"] or ""),
                *(str(branch["entries"]), terminal.age(branch["timestamp"], now) if branch["timestamp"] else ""),
                terminal.one_line(branch["head"]),
            ]
            for branch in shown["branches"]
        ]
        lines += ["", format_columns([list(BRANCHES), *rows], {3, 4}, text={5})]
    if shown["entries"]:
        lines += ["", *map(_row, shown["entries"])]
    return "\n".join(lines)


def tree_lines(rows: list[dict[str, Any]], *, every: bool = False) -> list[str]:
    """Return the tree of `rows`, one entry per line. Side branches are indented; the current branch is not indented.

    The function uses no recursion, because a long session would exceed Python's recursion limit.
    """
    shown = {row["id"]: row for row in rows if every or row["type"] in TEXT_TYPES}
    above: dict[str, str | None] = {}
    children: dict[str | None, list[dict[str, Any]]] = {}
    for row in rows:
        parent = row["parent_id"]
        parent = parent if parent in shown else above.get(parent)
        above[row["id"]] = parent
        if row["id"] in shown:
            children.setdefault(parent, []).append(row)
    here = next((row["id"] for row in reversed(rows) if row["on_path"] and row["id"] in shown), None)
    lines: list[str] = []
    waiting = [(row, depth) for row, depth in _below(children.get(None, []), 0)]
    while waiting:
        row, depth = waiting.pop()
        lines.append(f"{'  ' * depth}{_row(row)}{'  <- here' if row['id'] == here else ''}")
        waiting += _below(children.get(row["id"], []), depth)
    return lines


def _below(rows: list[dict[str, Any]], depth: int) -> list[tuple[dict[str, Any], int]]:
    """Return the children `rows` of an entry with their indentation.

    The order is the reverse of the order on the screen. The child on the current branch keeps the indentation `depth`.
    If no child is on the current branch, the last child keeps it.
    """
    main_child = next((row for row in rows if row["on_path"]), rows[-1] if rows else None)
    side_children = [(row, depth + 1) for row in rows if row is not main_child]
    return [*([(main_child, depth)] if main_child is not None else []), *reversed(side_children)]


def _row(row: dict[str, Any]) -> str:
    who = row["role"] or row["type"]
    label = f"  [{terminal.truncate_line(row['label'])}]" if row["label"] else ""
    mark = "*" if row["on_path"] else " "
    return f"{mark} {row['id']} {terminal.safe(who)}: {terminal.truncate_line(row['head'])}{label}".rstrip()


def compaction(done: dict[str, Any]) -> str:
    """Return the result of a compaction as one line."""
    before, after = done["tokens_before"], done["tokens_after"]
    gone = terminal.pluralize(done["messages"], "message")
    return f"{before:,} tokens are now {after:,}: {BY[done['writer']]} replaces {gone} ({done['entry']})"
