"""A table of Markdown as it stands at a terminal: columns in line, and as wide as there is room for."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final

from .inline import inline
from .pieces import Piece, cells, joined, wrapped

__all__ = ["is_ruler", "table"]

RULER: Final = re.compile(r"\|?\s*:?-+:?\s*(\|\s*:?-+:?\s*)*\|?\s*\Z")
BAR: Final = re.compile(r"(?<!\\)\|")
BETWEEN: Final = " │ "
LEAST: Final = 5
"""Columns narrower than that are not read any more: each row becomes a list then."""


def is_ruler(line: str) -> bool:
    """Say whether `line` is the one between the head of a table and its rows."""
    return "-" in line and RULER.match(line.strip()) is not None


def table(lines: Sequence[str], width: int) -> list[list[Piece]]:
    """Return the table that `lines` are, its head and ruler first, within `width` columns."""
    sides = [_side(cell) for cell in _cells(lines[1])]
    count = len(sides)
    rows = [
        [inline(cell, "strong" if not n else "") for cell in _fitted(_cells(line), count)]
        for n, line in enumerate([lines[0], *lines[2:]])
    ]
    widths = _widths(
        [max(_room(row[column]) for row in rows) for column in range(count)], width - len(BETWEEN) * (count - 1)
    )
    if widths is None:
        return _listed(rows, width)
    ruler: list[Piece] = [("note", "─┼─".join("─" * each for each in widths))]
    found = [_row(row, widths, sides) for row in rows]
    return [*found[0], ruler, *(line for row in found[1:] for line in row)]


def _cells(line: str) -> list[str]:
    inner = line.strip().removeprefix("|")
    if inner.endswith("|") and not inner.endswith("\\|"):
        inner = inner[:-1]
    return [cell.strip().replace("\\|", "|") for cell in BAR.split(inner)]


def _fitted(row: list[str], count: int) -> list[str]:
    return (row + [""] * count)[:count]


def _side(cell: str) -> str:
    left, right = cell.startswith(":"), cell.endswith(":")
    return "middle" if left and right else "right" if right else "left"


def _room(cell: Sequence[Piece]) -> int:
    return sum(cells(text) for _, text in cell)


def _widths(wanted: list[int], room: int) -> list[int] | None:
    """Return how wide columns are that want that much, together `room` at most; None when that is too narrow."""
    wanted = [max(1, each) for each in wanted]
    if sum(wanted) <= room:
        return wanted
    most = max(wanted)
    while most > LEAST and sum(min(each, most) for each in wanted) > room:
        most -= 1
    widths = [min(each, most) for each in wanted]
    return widths if sum(widths) <= room else None


def _row(row: Sequence[list[Piece]], widths: Sequence[int], sides: Sequence[str]) -> list[list[Piece]]:
    columns = [wrapped(cell, width) for cell, width in zip(row, widths, strict=True)]
    lines = []
    for number in range(max(map(len, columns))):
        line: list[Piece] = []
        for column, (cell, width, side) in enumerate(zip(columns, widths, sides, strict=True)):
            said = cell[number] if number < len(cell) else []
            left = width - _room(said)
            before = left if side == "right" else left // 2 if side == "middle" else 0
            line += [("note", BETWEEN)] if column else []
            line += [("", " " * before), *said, ("", " " * (left - before))]
        lines.append(joined(line))
    return lines


def _listed(rows: Sequence[Sequence[list[Piece]]], width: int) -> list[list[Piece]]:
    """Return a table that is too wide as a list: of each row its cells, each behind the head of its column."""
    found: list[list[Piece]] = []
    for row in rows[1:]:
        found += [[]] if found else []
        for head, cell in zip(rows[0], row, strict=True):
            found += wrapped([*head, ("strong", ":"), ("", " "), *cell], width, hang="  ")
    return found
