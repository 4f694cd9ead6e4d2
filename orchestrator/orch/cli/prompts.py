"""Prompts as pages for people."""

from __future__ import annotations

from . import render

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

__all__ = ["page"]

HEAD = ["TIER", "PART", "TOKENS", "OWNER", "SOURCE", "HASH", "SINCE THE LAST REQUEST"]
RIGHT = frozenset({2})


def page(prompt: dict[str, Any]) -> str:
    """Return the prompt of an agent as a page: its parts in a table, what is to be said of them, then their texts."""
    parts = prompt["parts"]
    rows = [_cells(part, asked=prompt["asked"]) for part in parts]
    total = ["", "", str(sum(part["tokens"] for part in parts)), "", "", "", ""]
    notes = [f"note: {render.line(note, 200)}" for note in prompt["notes"]]
    gone = [f"said no more: {', '.join(map(render.line, prompt['gone']))}"] if prompt["gone"] else []
    texts = [f"\n== {render.line(part['name'])}\n{render.shown(part['text'])}" for part in parts]
    return "\n".join([render.columns([HEAD, *rows, total], RIGHT), *gone, *notes, *texts])


def _cells(part: dict[str, Any], *, asked: bool) -> list[str]:
    since = part["change"] or ("the same" if asked else "")
    texts = [render.line(part[key], 40) for key in ("owner", "source")]
    return [part["tier"], render.line(part["name"], 40), str(part["tokens"]), *texts, part["hash"], since]
