"""Objects of a workspace as a table and as pages."""

from __future__ import annotations

from . import terminal
from .columns import format_columns

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

__all__ = ["page", "table"]

HEAD = ("NAME", "KIND", "SIZE", "TURN", "FROM", "STATE", "SUMMARY")
RIGHT = frozenset({2, 3})
NAME, FROM, SUMMARY = 48, 40, 60


def table(shown: dict[str, Any]) -> str:
    """Return the workspace of an agent as a table. Return "" if the workspace is empty."""
    rows = [_cells(each) for each in shown["artifacts"]]
    return f"{format_columns([list(HEAD), *rows], RIGHT)}\n{shown['digest']}" if rows else ""


def _cells(artifact: dict[str, Any]) -> list[str]:
    return [
        *(
            terminal.truncate_line(artifact["name"], NAME),
            terminal.truncate_line(artifact["kind"], 20),
            _size(artifact.get("size", 0)),
        ),
        *(str(artifact.get("turn", "")), terminal.truncate_line(", ".join(_made_from(artifact)), FROM)),
        ", ".join([*(["pinned"] if artifact.get("pinned") else []), *(["STALE"] if artifact.get("stale") else [])]),
        terminal.truncate_line(artifact.get("summary", ""), SUMMARY),
    ]


def _made_from(artifact: dict[str, Any]) -> list[str]:
    files = [each["path"] for each in artifact.get("files", ())]
    return [*artifact.get("deps", ()), *(path for path in files if not artifact["name"].endswith(path))]


def _size(size: int) -> str:
    for unit, factor in (("G", 10**9), ("M", 10**6), ("k", 10**3)):
        if size >= factor:
            return f"{size / factor:.1f}{unit}"
    return str(size) if size else ""


def page(artifact: dict[str, Any]) -> str:
    """Return an object as a page with its properties, its origin, and whether the object is stale."""
    arguments = ", ".join(f"{name}={value}" for name, value in artifact.get("arguments", {}).items())
    call = f"{artifact['tool']}({arguments})" if artifact.get("tool") else ""
    facts = {
        "kind": artifact["kind"],
        "bytes": f"{artifact['size']:,}" if artifact.get("size") else "",
        "made": f"in turn {artifact.get('turn', 0)}, {artifact.get('at', '')}",
        "used": f"in turn {artifact.get('used', 0)}",
        "by": call,
        "call": artifact.get("call", ""),
        "query": artifact.get("query", ""),
        "from": ", ".join(_made_from(artifact)),
        "files": ", ".join(each["path"] for each in artifact.get("files", ())),
        "value in": artifact.get("handle", ""),
        "stale": artifact.get("stale", ""),
        "pinned": "yes" if artifact.get("pinned") else "",
        "untrusted": "yes" if artifact.get("untrusted") else "",
    }
    lines = [f"  {name + ':':11}{terminal.truncate_line(value, 300)}" for name, value in facts.items() if value]
    return "\n".join(
        [terminal.truncate_line(artifact["name"], 300), *lines, "", terminal.safe(artifact.get("summary", ""))]
    )
