"""Splits values and texts into lines that can be read in parts: items of a list, rows of a table, lines of a text.

This module does no I/O.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence, Set
from typing import Any, Final

from msgspec import Struct

from ..api.base import ToolError
from ..files.search import PatternSearch
from .repr import cell, is_array, is_frame, is_series, one_line_repr, rows

__all__ = ["MAX_CHARACTERS", "PagedView", "lines_that_fit", "paged_view", "parse_line_range", "part_of_line", "search"]

MAX_CHARACTERS: Final = 24_000
MAX_LINE: Final = 2_000
MAX_FOUND: Final = 100
CONTEXT_CHARS: Final = 150
CHUNK_LINES: Final = 500
RANGE: Final = re.compile(r"\s*(-?\d+)?\s*:\s*(-?\d+)?\s*|\s*(-?\d+)\s*")


class PagedView(Struct, frozen=True):
    """A value as `count` numbered lines.

    `lines(a, b)` returns lines a to b-1, with long lines shortened. `full_lines(a, b)` returns the same lines in full.
    """

    count: int
    unit: str
    lines: Callable[[int, int], list[str]]
    full_lines: Callable[[int, int], list[str]]
    header: str = ""


def paged_view(value: Any) -> PagedView:
    """Return `value` as lines. A value without parts is shown as the lines of its repr."""
    if isinstance(value, str):
        return _text_view(value)
    if is_frame(value):

        def table(start: int, stop: int) -> list[str]:
            return [" | ".join(map(cell, row)) for row in rows(value, start, stop)]

        def full_rows(start: int, stop: int) -> list[str]:
            return [" | ".join(map(str, row)) for row in rows(value, start, stop)]

        return PagedView(len(value), "row", table, full_rows, header=" | ".join(map(cell, value.columns)))
    if is_series(value):
        by_position = getattr(value, "iloc", value)  # Rows are selected by position, not by index label.
        return _items_view(len(value), lambda a, b: by_position[a:b].to_list(), "value")
    if is_array(value) and value.ndim:
        return _items_view(len(value), lambda a, b: value[a:b].tolist(), "row" if value.ndim > 1 else "value")
    if isinstance(value, Mapping):
        keys = list(value)

        def pairs(start: int, stop: int) -> list[str]:
            return [f"{one_line_repr(key)}: {one_line_repr(value[key])}" for key in keys[start:stop]]

        return PagedView(len(keys), "key", pairs, lambda a, b: [f"{key!r}: {value[key]!r}" for key in keys[a:b]])
    if isinstance(value, (Set, Sequence)) and not isinstance(value, (bytes, bytearray, range)):
        sequence = list(value) if isinstance(value, Set) else value
        return _items_view(len(sequence), lambda a, b: sequence[a:b], "item")
    return _text_view(repr(value))


def parse_line_range(text: str, count: int) -> tuple[int, int]:
    """Return the start and stop positions of the lines selected by `text`. `count` is the total number of lines.

    `text` is a number, or "a:b" with the meaning of a Python slice. Raise ToolError for other text.
    """
    match = RANGE.fullmatch(text)
    if match is None:
        raise ToolError(f"Invalid range {text!r}: use Python syntax, such as '100:120', '-20:' or '7'.")
    if match[3] is not None:
        index = int(match[3])
        index += count if index < 0 else 0
        return (index, index + 1) if 0 <= index < count else (count, count)
    first, last = (int(each) if each else None for each in match.group(1, 2))
    start, stop, _ = slice(first, last).indices(count)
    return start, max(start, stop)


def lines_that_fit(view: PagedView, start: int, stop: int) -> str:
    """Return the lines from `start` to `stop` (exclusive) within the size limit. A note says where to continue."""
    shown: list[str] = []
    size, index = len(view.header), start
    while index < stop:
        lines = view.lines(index, min(index + CHUNK_LINES, stop))
        for line in lines:
            line = _shorten_line(line, index)
            if shown and size + len(line) > MAX_CHARACTERS:
                return _add_note(view, shown, start, index, stop)
            shown.append(line)
            size += len(line) + 1
            index += 1
        if not lines:
            break
    return _add_note(view, shown, start, index, stop)


def part_of_line(view: PagedView, number: int, offset: int, limit: int) -> str:
    """Return `limit` characters of the complete line `number`, from `offset` on."""
    (text,) = view.full_lines(number, number + 1)
    if offset and offset >= len(text):
        raise ToolError(f"{view.unit} {number:,} has {len(text):,} characters, none from {offset:,} on.")
    end = min(offset + min(limit, MAX_CHARACTERS), len(text))
    continuation = f"; go on with offset={end}" if end < len(text) else ""
    return (
        f"{text[offset:end]}\n[{view.unit} {number:,}: characters {offset:,} to {end:,} of {len(text):,}{continuation}]"
    )


def search(view: PagedView, pattern_search: PatternSearch, start: int, stop: int) -> str:
    """Return the numbered lines between `start` and `stop` that match, up to the limits of number, size and time.

    Raise ToolError if the search fails or takes too long.
    """
    found: list[str] = []
    size = 0
    for first in range(start, stop, CHUNK_LINES):
        lines = view.full_lines(first, min(first + CHUNK_LINES, stop))
        for index, match_start, match_end in pattern_search.search(lines):
            excerpt = lines[index][max(0, match_start - CONTEXT_CHARS) : match_end + CONTEXT_CHARS]
            found.append(f"{first + index}: {' '.join(excerpt[: 4 * CONTEXT_CHARS].split())}")
            size += len(found[-1]) + 1
            next_line = first + index + 1
            if next_line < stop and (len(found) == MAX_FOUND or size > MAX_CHARACTERS):
                return "\n".join([*found, f'[stopped here; go on with lines="{next_line}:"]'])
        next_line = first + pattern_search.searched_lines
        if next_line < stop and pattern_search.is_timed_out:
            return "\n".join([*found, f'[time was up; go on with lines="{next_line}:"]'])
    return "\n".join(found) or f"No match for {pattern_search.pattern!r} in {view.unit}s {start:,} to {stop:,}."


def _add_note(view: PagedView, shown: list[str], start: int, next_line: int, stop: int) -> str:
    continuation = f'; go on with lines="{next_line}:{stop}"' if next_line < stop else ""
    note = f"[{view.unit}s {start:,} to {next_line:,} of {view.count:,}{continuation}]"
    return "\n".join([*([view.header] if view.header else []), *shown, note])


def _shorten_line(line: str, number: int) -> str:
    if len(line) <= MAX_LINE:
        return line
    return f'{line[:MAX_LINE]}... [{len(line):,} characters: lines="{number}" with offset shows any part of it]'


def _text_view(text: str) -> PagedView:
    ends = [match.end() for match in re.finditer("\n", text)]
    if not text.endswith("\n"):
        ends.append(len(text))

    def lines(start: int, stop: int) -> list[str]:
        begins = [ends[start - 1] if start else 0, *ends[start : stop - 1]]
        return [text[a:b].removesuffix("\n") for a, b in zip(begins, ends[start:stop], strict=True)]

    return PagedView(len(ends), "line", lines, lines)


def _items_view(count: int, get_items: Callable[[int, int], Sequence[Any]], unit: str) -> PagedView:
    def lines(start: int, stop: int) -> list[str]:
        return [f"[{number}] {one_line_repr(each)}" for number, each in enumerate(get_items(start, stop), start)]

    return PagedView(count, unit, lines, lambda a, b: list(map(repr, get_items(a, b))))
