"""Aligned columns, wrapped text and shortened text within the width of a terminal.

If stdout is not a terminal, the width is unlimited and no text is cut.
"""

from __future__ import annotations

import os
import re
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Collection, Sequence
    from typing import TextIO

__all__ = ["DEFAULT_WIDTH", "cut", "display_width", "escape", "format_columns", "output_width", "wrap"]

DEFAULT_WIDTH = 80
"""The assumed width of a front end or terminal that does not tell its width."""
GAP = 2
INDENT = 4
"""The indentation of the further lines of a row."""
MIN_TEXT = 16
"""The width to which a column of text is cut at most."""
ELLIPSIS = "…"
SPECIAL = "[\x00-\x1f\x7f-\x9f\u2028-\u202e\u2066-\u2069]"
"""Control characters, line breaks and bidirectional marks."""


def output_width(out: TextIO | None = None) -> int | None:
    """Return the number of columns of the terminal at `out`, or None if it is not a terminal. The default is stdout.

    The environment variable COLUMNS overrides the width of the terminal.
    """
    out = sys.stdout if out is None else out
    if not out.isatty():
        return None
    set_width = os.environ.get("COLUMNS", "")
    if set_width.isascii() and set_width.isdigit() and int(set_width):
        return int(set_width)
    try:
        return os.get_terminal_size(out.fileno()).columns or DEFAULT_WIDTH
    except (OSError, ValueError):
        return DEFAULT_WIDTH


def format_columns(
    lines: Sequence[Sequence[str]],
    right: Collection[int] = (),
    *,
    text: Collection[int] = (),
    paths: Collection[int] = (),
    width: int | None = None,
) -> str:
    """Return `lines` of cells as aligned columns, which are at most `width` wide. The default is the output's width.

    Control characters and line breaks in cells are escaped, so that a name cannot look like several rows.

    The numbers are indexes of columns. The columns `right` are aligned to the right. If the columns are too wide, the
    columns `text` lose the end of their cells, and the columns `paths` the start. Other columns are never cut. If the
    columns are still too wide, each row takes several lines, and the further lines are indented. A cell that is never
    cut and is wider than the terminal exceeds the width.
    """
    if not lines:
        return ""
    lines = [[*map(escape, line)] for line in lines]
    natural = [max(map(display_width, column)) for column in zip(*lines, strict=True)]
    limit = output_width() if width is None else width
    rows = _layout(natural, {*text, *paths}, limit)
    found = []
    for line in lines:
        for number, widths in enumerate(rows):
            cells = []
            for at, size in widths.items():
                cell = cut(line[at], size, start=at in paths)
                padding = " " * (size - display_width(cell))
                cells.append(padding + cell if at in right else cell + padding)
            row = (" " * GAP).join(cells).rstrip()
            if row or not number:
                found.append(" " * INDENT * bool(number) + row)
    return "\n".join(found)


def escape(text: str, kept: str = "") -> str:
    """Return `text` with its control characters and line breaks escaped, except those in `kept`."""
    if text.isprintable():  # the usual case; compiling the regular expression takes as long as connecting
        return text

    def escaped(found: re.Match[str]) -> str:
        return found[0] if found[0] in kept else found[0].encode("unicode_escape").decode()

    return re.sub(SPECIAL, escaped, text)


def _layout(natural: list[int], shrinkable: set[int], limit: int | None) -> list[dict[int, int]]:
    """Return the lines of a row. Each line contains the widths of its columns, by index."""
    if limit is None:
        return [dict(enumerate(natural))]
    rows: list[dict[int, int]] = []
    first = 0
    while first < len(natural):
        space = limit - INDENT * bool(rows)
        ends = range(len(natural), first, -1)
        fits = (_fit({at: natural[at] for at in range(first, end)}, shrinkable, space) for end in ends)
        alone = max(1, space) if first in shrinkable else natural[first]
        widths = next((each for each in fits if each is not None), {first: alone})
        rows.append(widths)
        first += len(widths)
    return rows


def _fit(natural: dict[int, int], shrinkable: set[int], space: int) -> dict[int, int] | None:
    """Return widths at which the columns fit into `space`. Return None if they do not fit."""
    texts = sorted(shrinkable & set(natural), key=natural.__getitem__)
    left = space - sum(size for at, size in natural.items() if at not in shrinkable) - GAP * (len(natural) - 1)
    smallest = MIN_TEXT if len(natural) > 1 else 1
    if left < sum(min(natural[at], smallest) for at in texts):
        return None
    widths = dict(natural)
    for number, at in enumerate(texts):  # the narrowest first: what it does not need is left to the others
        widths[at] = min(natural[at], left // (len(texts) - number))
        left -= widths[at]
    return widths


def cut(text: str, width: int | None, *, start: bool = False) -> str:
    """Return the line `text`, cut to `width` columns with an ellipsis at its end, or at its start."""
    if width is None or display_width(text) <= width:
        return text
    if start:
        return ELLIPSIS + _prefix(text[::-1], width - 1)[::-1]
    return _prefix(text, width - 1).rstrip() + ELLIPSIS


def wrap(text: str, width: int | None, indent: str = "") -> list[str]:
    """Return the lines of `text` with `indent`, wrapped to `width` columns: at spaces, or else inside words.

    Tabs become spaces if there is a width.
    """
    limit = None if width is None else max(1, width - len(indent))
    found = []
    for line in text.splitlines():
        rest = line if limit is None else line.expandtabs()
        while limit is not None and len(rest) > 1 and display_width(rest) > limit:
            head = _prefix(rest, limit) or rest[0]
            end = len(head) if rest.startswith(" ", len(head)) else head.rfind(" ")
            if not head[: max(end, 0)].strip():  # no word ends in this line
                end = len(head)
            found.append(f"{indent}{rest[:end].rstrip()}")
            rest = rest[end:].lstrip(" ")
        found.append(f"{indent}{rest}")
    return found


def display_width(text: str) -> int:
    """Return the number of columns of `text` on a terminal.

    The chat uses the table of prompt_toolkit, which positions the cursor by it but takes long to import.
    """
    if text.isascii():
        return len(text)
    return sum(map(_columns, text))


def _columns(character: str) -> int:
    from unicodedata import category, east_asian_width

    if category(character) in ("Mn", "Me", "Cf"):
        return 0
    return 2 if east_asian_width(character) in "WF" else 1


def _prefix(text: str, width: int) -> str:
    """Return the longest prefix of `text` that fits into `width` columns."""
    end, used = 0, 0
    for character in text:
        used += 1 if character.isascii() else _columns(character)
        if used > width:
            break
        end += 1
    return text[:end]
