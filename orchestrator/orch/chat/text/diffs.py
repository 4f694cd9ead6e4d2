"""What a call that changes a file would change, as a unified diff."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, Final

from orch_worker.system.files import regular_open_regular

from .styled_text import Piece

__all__ = ["MOST_LINES", "diff_line_style", "diff_lines", "read"]

MOST_LINES: Final = 400
MOST_BYTES: Final = 2_000_000
AROUND: Final = 3
Read = Callable[[str], str | None]


def read(path: str) -> str | None:
    """Return the text of a file, None for one that is not there, is no plain text, or is too long to compare."""
    try:
        with regular_open_regular(Path(path)) as file:
            data = file.read(MOST_BYTES + 1)
        return data.decode() if len(data) <= MOST_BYTES else None
    except (OSError, ValueError):
        return None


def diff_lines(tool: str, input: Mapping[str, Any], path: str, read: Read = read) -> list[list[Piece]]:
    """Return the lines of the diff of a call of `tool` that changes the file `path`, none when it changes no file.

    Of more than MOST_LINES the rest is counted. Where the file cannot be read, it is told so by the diff being of the
    texts of the call alone.
    """
    if tool == "write_file" and isinstance(content := input.get("content"), str):
        before = read(path) or ""
        after = before + content if input.get("append") else content
    elif tool == "replace_in_file":
        old, new = input.get("old_text"), input.get("new_text")
        if not isinstance(old, str) or not isinstance(new, str) or not old:
            return []
        whole = read(path)
        before, after = (whole, whole.replace(old, new)) if whole is not None and old in whole else (old, new)
    else:
        return []
    lines = list(_diff(path, before, after))
    left = len(lines) - MOST_LINES
    shown = [[(diff_line_style(line), line)] for line in lines[:MOST_LINES]]
    return [*shown, [("note", f"… {left:,} more lines of the diff")]] if left > 0 else shown


def diff_line_style(line: str) -> str:
    """Return the style of a line of a diff."""
    if line.startswith(("+++", "---")):
        return "strong"
    return {"+": "add", "-": "del", "@": "hunk"}.get(line[:1], "")


def _diff(path: str, before: str, after: str) -> Iterator[str]:
    old, new = before.splitlines(), after.splitlines()
    yield from difflib.unified_diff(old, new, path, path, lineterm="", n=AROUND)
    if old == new and before != after:
        yield "  (line ends alone)"
