"""Prompt templates, and the parts of a prompt, as tables and pages."""

from __future__ import annotations

from .. import terminal
from ..columns import format_columns

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from ...resources.prompt_templates import PromptTemplate

__all__ = ["page", "table", "template_data", "template_table"]

HEAD = ["TIER", "PART", "TOKENS", "OWNER", "SOURCE", "HASH", "SINCE THE LAST REQUEST"]
RIGHT = frozenset({2})


def template_data(templates: list[PromptTemplate]) -> list[dict[str, Any]]:
    """Return templates as JSON data."""
    return [template_row(template.name, template.variables, template.source) for template in templates]


def template_table(rows: list[dict[str, Any]]) -> str:
    """Return templates as a table, one per line."""
    cells = [
        [terminal.truncate_line(row["name"]), " ".join(row["variables"]), terminal.safe(row["source"])] for row in rows
    ]
    return format_columns([["NAME", "VARIABLES", "SOURCE"], *cells])


def template_row(name: str, variables: tuple[str, ...], source: str) -> dict[str, Any]:
    return {"name": name, "variables": list(variables), "source": source}


def page(prompt: dict[str, Any]) -> str:
    """Return a page about an agent's prompt: a table of the parts, notes, and the texts of the parts."""
    parts = prompt["parts"]
    notes = [f"note: {terminal.truncate_line(note, 200)}" for note in prompt["notes"]]
    gone = [f"no longer included: {', '.join(map(terminal.truncate_line, prompt['gone']))}"] if prompt["gone"] else []
    texts = [f"\n== {terminal.truncate_line(part['name'])}\n{terminal.safe_for_stdout(part['text'])}" for part in parts]
    return "\n".join([table(prompt), *gone, *notes, *texts])


def table(prompt: dict[str, Any]) -> str:
    """Return the parts of a prompt as a table, with their total size."""
    parts = prompt["parts"]
    rows = [_cells(part, asked=prompt["asked"]) for part in parts]
    total = ["", "", str(sum(part["tokens"] for part in parts)), "", "", "", ""]
    return format_columns([HEAD, *rows, total], RIGHT)


def _cells(part: dict[str, Any], *, asked: bool) -> list[str]:
    since = part["change"] or ("the same" if asked else "")
    texts = [terminal.truncate_line(part[key], 40) for key in ("owner", "source")]
    return [part["tier"], terminal.truncate_line(part["name"], 40), str(part["tokens"]), *texts, part["hash"], since]
