"""Unified diffs of tool calls that change a file."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, Final

from orch_worker.system.files import open_regular_file

from .styled_text import Piece

__all__ = ["MAX_LINES", "diff_line_style", "diff_lines", "read"]

MAX_LINES: Final = 400
MAX_BYTES: Final = 2_000_000
CONTEXT_LINES: Final = 3
Read = Callable[[str], str | None]


def read(path: str) -> str | None:
    """Return the text of a file. Return None if the file does not exist, is not plain text, or is too long."""
    try:
        with open_regular_file(Path(path)) as file:
            data = file.read(MAX_BYTES + 1)
        return data.decode() if len(data) <= MAX_BYTES else None
    except (OSError, ValueError):
        return None


def diff_lines(tool: str, input: Mapping[str, Any], path: str, read: Read = read) -> list[list[Piece]]:
    """Return the diff of the change that a call of `tool` makes to `path`. Return [] if no file changes.

    Lines after the first MAX_LINES lines are only counted. If the file cannot be read, the diff compares the texts in
    the call.
    """
    if tool == "write_file" and isinstance(content := input.get("content"), str):
        before = read(path) or ""
        after = before + content if input.get("append") else content
    elif tool == "replace_in_file":
        old, new = input.get("old_text"), input.get("new_text")
        if not isinstance(old, str) or not isinstance(new, str) or not old:
            return []
        text = read(path)
        before, after = (text, text.replace(old, new)) if text is not None and old in text else (old, new)
    else:
        return []
    lines = list(_diff(path, before, after))
    hidden_count = len(lines) - MAX_LINES
    shown = [[(diff_line_style(line), line)] for line in lines[:MAX_LINES]]
    return [*shown, [("note", f"… {hidden_count:,} more lines of the diff")]] if hidden_count > 0 else shown


def diff_line_style(line: str) -> str:
    """Return the style of a line of a diff."""
    if line.startswith(("+++", "---")):
        return "strong"
    return {"+": "add", "-": "del", "@": "hunk"}.get(line[:1], "")


def _diff(path: str, before: str, after: str) -> Iterator[str]:
    old, new = before.splitlines(), after.splitlines()
    yield from difflib.unified_diff(old, new, path, path, lineterm="", n=CONTEXT_LINES)
    if old == new and before != after:
        yield "  (only line ends differ)"
