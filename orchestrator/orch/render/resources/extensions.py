"""Extensions as JSON data and as text. The data comes from their manifests; their code is not run."""

from __future__ import annotations

from typing import Any, Final

import msgspec

from ...resources.extensions import FoundExtension
from .. import terminal
from ..columns import format_columns

__all__ = ["described", "page", "table"]

HEAD: Final = ["EXTENSION", "VERSION", "FROM", "ON", "MAY", "DESCRIPTION"]


def described(found: FoundExtension) -> dict[str, Any]:
    """Return an extension's manifest and status as JSON data. The code of the extension is not run."""
    row: dict[str, Any] = {
        "name": found.name,
        "path": found.path,
        "where": found.where,
        "on": not found.why_off,
        "why_off": found.why_off,
        "version": "",
        "description": "",
        "permissions": None,
        "hooks": [],
        "tools": [],
        "commands": [],
        "prompts": [],
        "keys": {},
        "widgets": [],
        "notes": [],
    }
    if (manifest := found.manifest) is not None:
        row |= {"version": manifest.version, "description": manifest.description}
        row["permissions"] = msgspec.to_builtins(manifest.permissions)
        row |= {"keys": dict(manifest.keys), "widgets": msgspec.to_builtins(manifest.widgets)}
    return row


def table(rows: list[dict[str, Any]]) -> str:
    """Return extensions as a table, one per line."""
    return format_columns([HEAD, *map(_cells, rows)], text={5})


def page(row: dict[str, Any]) -> str:
    """Return an extension as a page: its manifest, permissions and contents."""
    facts = {
        "version": row["version"],
        "does": row["description"],
        "folder": f"{row['path']} ({row['where']})",
        "on": "yes" if row["on"] else f"no: {row['why_off']}",
        **{f"may: {kind}": ", ".join(what) for kind, what in (row["permissions"] or {}).items() if what},
        "hooks": ", ".join(row["hooks"]),
        "tools": ", ".join(row["tools"]),
        "commands": ", ".join(row["commands"]),
        "templates": ", ".join(row["prompts"]),
        "keys": ", ".join(f"{key}: {line}" for key, line in row["keys"].items()),
        "widgets": ", ".join(f"{each['name']} ({each['place']}): {each['command']}" for each in row["widgets"]),
    }
    lines = [f"  {name + ':':15}{terminal.safe(value)}" for name, value in facts.items() if value]
    return "\n".join([terminal.safe(row["name"]), *lines, *(f"  note: {terminal.safe(note)}" for note in row["notes"])])


def _cells(row: dict[str, Any]) -> list[str]:
    may = row["permissions"] or {}
    kinds = ("stages", "tools", "tiers", "commands", "skills", "prompts")
    parts = [f"{kind}: {', '.join(may[kind])}" for kind in kinds if may.get(kind)]
    texts = [row["name"], row["version"], row["where"], "yes" if row["on"] else "no", "; ".join(parts)]
    return [*(terminal.truncate_line(each, 48) for each in texts), terminal.truncate_line(row["description"])]
