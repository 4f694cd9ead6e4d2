"""Prompt templates, and the parts of a prompt, as tables and pages."""

from __future__ import annotations

from . import terminal

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from ..resources.prompt_templates import PromptTemplate

__all__ = ["page", "table", "template_data", "template_table"]

HEAD = ["TIER", "PART", "TOKENS", "OWNER", "SOURCE", "HASH", "SINCE THE LAST REQUEST"]
RIGHT = frozenset({2})


def template_data(templates: list[PromptTemplate]) -> list[dict[str, Any]]:
    """Return templates as JSON data."""
    return [template_row(template.name, template.variables, template.source) for template in templates]


def template_table(rows: list[dict[str, Any]]) -> str:
    """Return templates as a table, one a line."""
    cells = [[terminal.line(row["name"]), " ".join(row["variables"]), terminal.safe(row["source"])] for row in rows]
    return terminal.columns([["NAME", "VARIABLES", "SOURCE"], *cells], frozenset())


def template_row(name: str, variables: tuple[str, ...], source: str) -> dict[str, Any]:
    return {"name": name, "variables": list(variables), "source": source}


def page(prompt: dict[str, Any]) -> str:
    """Return the prompt of an agent as a page: its parts in a table, what is to be said of them, then their texts."""
    parts = prompt["parts"]
    notes = [f"note: {terminal.line(note, 200)}" for note in prompt["notes"]]
    gone = [f"said no more: {', '.join(map(terminal.line, prompt['gone']))}"] if prompt["gone"] else []
    texts = [f"\n== {terminal.line(part['name'])}\n{terminal.shown(part['text'])}" for part in parts]
    return "\n".join([table(prompt), *gone, *notes, *texts])


def table(prompt: dict[str, Any]) -> str:
    """Return the parts of a prompt as a table, with what they are together."""
    parts = prompt["parts"]
    rows = [_cells(part, asked=prompt["asked"]) for part in parts]
    total = ["", "", str(sum(part["tokens"] for part in parts)), "", "", "", ""]
    return terminal.columns([HEAD, *rows, total], RIGHT)


def _cells(part: dict[str, Any], *, asked: bool) -> list[str]:
    since = part["change"] or ("the same" if asked else "")
    texts = [terminal.line(part[key], 40) for key in ("owner", "source")]
    return [part["tier"], terminal.line(part["name"], 40), str(part["tokens"]), *texts, part["hash"], since]
