"""Memory notes as JSON data and as a table."""

from __future__ import annotations

from typing import Any

import msgspec

from orch_protocol.resources.memory import Note

from .. import terminal
from ..columns import format_columns

__all__ = ["data", "table"]

HEAD = ("ID", "DAY", "BY", "NOTE")


def table(notes: list[Note]) -> str:
    """Return notes as a table, one per line."""
    rows = [[note.id, note.at[:10], author(note), terminal.one_line(note.text)] for note in notes]
    return format_columns([list(HEAD), *rows], text={3})


def author(note: Note) -> str:
    return {"agent": "an agent", "compaction": "a summary", "user": "a person"}[note.source]


def data(notes: list[Note]) -> Any:
    """Return notes as JSON data."""
    return [{**msgspec.to_builtins(note), "source": note.source} for note in notes]
