"""Styled text and its display width on a terminal. Control characters are escaped."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from functools import lru_cache
from typing import Final, TypeAlias

from ...render import terminal

__all__ = [
    "TAB",
    "Piece",
    "display_width",
    "escape_control_characters",
    "fit",
    "join_neighbors",
    "prefix_of_width",
    "truncate",
    "wrap",
]

Piece: TypeAlias = tuple[str, str]
"""A style and a text.

The style of the agent's text is "". Other styles are `call error task note you ask add del hunk strong em code link
heading quote strike`. Several styles are separated by commas.
"""
TAB: Final = 4
COLUMN: Final = re.compile(r" +\S+(?: \S+)* {2,}(?=\S)")
"""The first column of an indented table."""
ATOM: Final = re.compile(r"\s+|\S+")


def escape_control_characters(text: str) -> str:
    r"""Return `text` with control characters escaped. Line ends become "\n"."""
    return terminal.safe(text.replace("\r\n", "\n"))


def display_width(text: str) -> int:
    """Return the width of `text` on a terminal, in columns."""
    return len(text) if text.isascii() else sum(map(_columns, text))


@lru_cache(1 << 14)
def _columns(character: str) -> int:
    from prompt_toolkit.utils import get_cwidth  # imported here because most text needs no table of widths

    return get_cwidth(character)


def truncate(pieces: Iterable[Piece], width: int) -> list[Piece]:
    """Return `pieces` truncated to `width` columns. Truncated text ends with an ellipsis."""
    remaining, found = width, []
    for style, text in pieces:
        if (columns := display_width(text)) > remaining:
            found.append((style, prefix_of_width(text, max(0, remaining - 1)) + "…" * (remaining > 0)))
            break
        found.append((style, text))
        remaining -= columns
    return found


def join_neighbors(pieces: Iterable[Piece]) -> list[Piece]:
    """Join adjacent pieces that have the same style, and remove empty pieces."""
    found: list[Piece] = []
    for style, text in pieces:
        if found and found[-1][0] == style:
            found[-1] = style, found[-1][1] + text
        elif text:
            found.append((style, text))
    return found


def wrap(pieces: Iterable[Piece], width: int, first: Sequence[Piece] = (), hang: str = "") -> list[list[Piece]]:
    """Return `pieces` wrapped to `width` columns, at spaces where possible.

    The first row begins with `first`, the other rows begin with `hang`. `first` and `hang` are never broken.
    """
    hang = hang[: max(0, width // 2)]
    rows: list[list[Piece]] = []
    row, used = list(first), sum(display_width(text) for _, text in first)
    empty = True
    for style, atom in _atoms(pieces):
        columns = display_width(atom)
        if atom.isspace():
            if not empty or not rows:
                row.append((style, atom))
                used += columns
            continue
        while used + columns > width:
            available = width - used
            head = prefix_of_width(atom, available) if empty and available > 0 else ""
            if empty and not head:  # no character fits into the row: write one character anyway
                head = atom[:1]
            row.append((style, head))
            atom = atom[len(head) :]
            columns -= display_width(head)
            rows.append(_trim_end(row))
            row, used, empty = [("", hang)], display_width(hang), True
            if not atom:
                break
        if atom:
            row.append((style, atom))
            used += columns
            empty = False
    return [*rows, _trim_end(row)] if not empty or not rows else rows


def fit(line: list[Piece], width: int, hang: str = "") -> list[list[Piece]]:
    """Return `line` as rows of at most `width` columns, broken at spaces.

    Further rows have the indentation of the line and `hang`. If the line is a row of an indented table, further rows
    begin at the second column of the table. Lines of code are not changed, because their text may be copied.
    """
    if sum(display_width(text) for _, text in line) <= width or all(style == "code" for style, _ in line):
        return [line]
    text = "".join(text for _, text in line)
    column = COLUMN.match(text)
    if column is not None and column.end() <= width // 2:
        hang = " " * column.end()
    else:
        hang = " " * (len(text) - len(text.lstrip(" "))) + hang
    return wrap(line, width, hang=hang)


def _trim_end(row: list[Piece]) -> list[Piece]:
    """Return a row without trailing spaces."""
    end = len(row)
    while end and not row[end - 1][1].rstrip():
        end -= 1
    return join_neighbors([*row[: end - 1], (row[end - 1][0], row[end - 1][1].rstrip())] if end else [])


def _atoms(pieces: Iterable[Piece]) -> Iterator[Piece]:
    """Yield words and spaces. In scripts without spaces between words, yield single characters."""
    for style, text in pieces:
        for found in ATOM.finditer(text):
            atom = found[0]
            if atom.isascii() or display_width(atom) == len(atom):
                yield style, atom
            else:
                yield from (
                    (style, each) for each in re.findall(r"[\x21-\x7e]+|.[\u0300-\u036f\u200d\ufe00-\ufe0f]*", atom)
                )


def prefix_of_width(text: str, width: int) -> str:
    """Return the longest prefix of `text` that fits into `width` columns."""
    if text[: width + 1].isascii():
        return text[:width]
    end, used = 0, 0
    for character in text:
        used += _columns(character)
        if used > width:
            break
        end += 1
    return text[:end]
