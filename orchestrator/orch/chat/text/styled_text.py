"""Text with a style, and how much room it takes at a terminal. Nothing here is obeyed."""

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
    "join_neighbors",
    "prefix_of_width",
    "truncate",
    "wrap",
]

Piece: TypeAlias = tuple[str, str]
"""A style and a text. Styles: "" for what the agent says, and `call error task note you ask add del hunk strong em code
link heading quote strike`; several have commas between them."""
TAB: Final = 4
ATOM: Final = re.compile(r"\s+|\S+")


def escape_control_characters(text: str) -> str:
    """Return `text` as a terminal may have it: control characters written out, line ends as one character."""
    return terminal.safe(text.replace("\r\n", "\n"))


def display_width(text: str) -> int:
    """Return how many columns `text` takes."""
    return len(text) if text.isascii() else sum(map(_columns, text))


@lru_cache(1 << 14)
def _columns(character: str) -> int:
    from prompt_toolkit.utils import get_cwidth  # most text needs no table of widths

    return get_cwidth(character)


def truncate(pieces: Iterable[Piece], width: int) -> list[Piece]:
    """Return what of `pieces` fits into `width` columns, and an ellipsis where something does not."""
    left, found = width, []
    for style, text in pieces:
        if (taken := display_width(text)) > left:
            found.append((style, prefix_of_width(text, max(0, left - 1)) + "…" * (left > 0)))
            break
        found.append((style, text))
        left -= taken
    return found


def join_neighbors(pieces: Iterable[Piece]) -> list[Piece]:
    """Return `pieces` with neighbours of one style as one, and none that is empty."""
    found: list[Piece] = []
    for style, text in pieces:
        if found and found[-1][0] == style:
            found[-1] = style, found[-1][1] + text
        elif text:
            found.append((style, text))
    return found


def wrap(pieces: Iterable[Piece], width: int, first: Sequence[Piece] = (), hang: str = "") -> list[list[Piece]]:
    """Return `pieces` in rows of `width` columns, broken at spaces where there are any: the first behind `first`, the
    others behind `hang`, neither of which is broken."""
    hang = hang[: max(0, width // 2)]
    rows: list[list[Piece]] = []
    row, used = list(first), sum(display_width(text) for _, text in first)
    empty = True
    for style, atom in _atoms(pieces):
        taken = display_width(atom)
        if atom.isspace():
            if not empty or not rows:
                row.append((style, atom))
                used += taken
            continue
        while used + taken > width:
            room = width - used
            head = prefix_of_width(atom, room) if empty and room > 0 else ""
            if empty and not head:  # not even one character has room: it is written all the same
                head = atom[:1]
            row.append((style, head))
            atom = atom[len(head) :]
            taken -= display_width(head)
            rows.append(_ended(row))
            row, used, empty = [("", hang)], display_width(hang), True
            if not atom:
                break
        if atom:
            row.append((style, atom))
            used += taken
            empty = False
    return [*rows, _ended(row)] if not empty or not rows else rows


def _ended(row: list[Piece]) -> list[Piece]:
    """Return a row without the spaces at its end."""
    end = len(row)
    while end and not row[end - 1][1].rstrip():
        end -= 1
    return join_neighbors([*row[: end - 1], (row[end - 1][0], row[end - 1][1].rstrip())] if end else [])


def _atoms(pieces: Iterable[Piece]) -> Iterator[Piece]:
    """Yield words and the spaces between them; of scripts that put none, each character may end a row."""
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
    """Return the beginning of `text` that fits into `width` columns."""
    if text[: width + 1].isascii():
        return text[:width]
    end, used = 0, 0
    for character in text:
        used += _columns(character)
        if used > width:
            break
        end += 1
    return text[:end]
