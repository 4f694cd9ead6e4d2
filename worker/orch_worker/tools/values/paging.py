"""Values and texts as lines that can be read part by part: items of a list, rows of a table, lines of a text. Pure."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence, Set
from typing import Any, Final

from msgspec import Struct

from ..api.base import ToolError
from ..files.search import PatternSearch
from .repr import cell, is_array, is_frame, is_series, one_line_repr, rows

__all__ = ["MOST_CHARACTERS", "PagedView", "lines_that_fit", "paged_view", "parse_line_range", "part_of_line", "search"]

MOST_CHARACTERS: Final = 24_000
MOST_LINE: Final = 2_000
MOST_FOUND: Final = 100
AROUND: Final = 150
STEP: Final = 500
RANGE: Final = re.compile(r"\s*(-?\d+)?\s*:\s*(-?\d+)?\s*|\s*(-?\d+)\s*")


class PagedView(Struct, frozen=True):
    """A value as `count` numbered lines; `lines(a, b)` returns those from a to before b, `whole(a, b)` all of them."""

    count: int
    unit: str
    lines: Callable[[int, int], list[str]]
    whole: Callable[[int, int], list[str]]
    header: str = ""


def paged_view(value: Any) -> PagedView:
    """Return `value` line by line. What has no parts is the lines of its repr."""
    if isinstance(value, str):
        return _text(value)
    if is_frame(value):

        def table(start: int, stop: int) -> list[str]:
            return [" | ".join(map(cell, row)) for row in rows(value, start, stop)]

        def whole(start: int, stop: int) -> list[str]:
            return [" | ".join(map(str, row)) for row in rows(value, start, stop)]

        return PagedView(len(value), "row", table, whole, header=" | ".join(map(cell, value.columns)))
    if is_series(value):
        by_place = getattr(value, "iloc", value)  # not by what its index calls them
        return _items(len(value), lambda a, b: by_place[a:b].to_list(), "value")
    if is_array(value) and value.ndim:
        return _items(len(value), lambda a, b: value[a:b].tolist(), "row" if value.ndim > 1 else "value")
    if isinstance(value, Mapping):
        keys = list(value)

        def pairs(start: int, stop: int) -> list[str]:
            return [f"{one_line_repr(key)}: {one_line_repr(value[key])}" for key in keys[start:stop]]

        return PagedView(len(keys), "key", pairs, lambda a, b: [f"{key!r}: {value[key]!r}" for key in keys[a:b]])
    if isinstance(value, (Set, Sequence)) and not isinstance(value, (bytes, bytearray, range)):
        held = list(value) if isinstance(value, Set) else value
        return _items(len(held), lambda a, b: held[a:b], "item")
    return _text(repr(value))


def parse_line_range(text: str, count: int) -> tuple[int, int]:
    """Return which of `count` lines "a:b" (or one number) means, as Python does. Raises ToolError."""
    match = RANGE.fullmatch(text)
    if match is None:
        raise ToolError(f"Invalid range {text!r}: use Python syntax, such as '100:120', '-20:' or '7'.")
    if match[3] is not None:
        at = int(match[3])
        at += count if at < 0 else 0
        return (at, at + 1) if 0 <= at < count else (count, count)
    first, last = (int(each) if each else None for each in match.group(1, 2))
    start, stop, _ = slice(first, last).indices(count)
    return start, max(start, stop)


def lines_that_fit(view: PagedView, start: int, stop: int) -> str:
    """Return the lines from `start` to before `stop`, as far as they fit, and where they go on."""
    shown: list[str] = []
    size, at = len(view.header), start
    while at < stop:
        lines = view.lines(at, min(at + STEP, stop))
        for line in lines:
            line = _cut(line, at)
            if shown and size + len(line) > MOST_CHARACTERS:
                return _paged(view, shown, start, at, stop)
            shown.append(line)
            size += len(line) + 1
            at += 1
        if not lines:
            break
    return _paged(view, shown, start, at, stop)


def part_of_line(view: PagedView, number: int, offset: int, limit: int) -> str:
    """Return `limit` characters from `offset` of the line `number`, whole as it is."""
    (text,) = view.whole(number, number + 1)
    if offset and offset >= len(text):
        raise ToolError(f"{view.unit} {number:,} has {len(text):,} characters, none from {offset:,} on.")
    end = min(offset + min(limit, MOST_CHARACTERS), len(text))
    more = f"; go on with offset={end}" if end < len(text) else ""
    return f"{text[offset:end]}\n[{view.unit} {number:,}: characters {offset:,} to {end:,} of {len(text):,}{more}]"


def search(view: PagedView, seeker: PatternSearch, start: int, stop: int) -> str:
    """Return the lines between `start` and `stop` that match, numbered; it stops when much is found, or time is up.

    Raises ToolError.
    """
    found: list[str] = []
    size = 0
    for first in range(start, stop, STEP):
        lines = view.whole(first, min(first + STEP, stop))
        for place, begin, end in seeker.among(lines):
            part = " ".join(lines[place][max(0, begin - AROUND) : end + AROUND][: 4 * AROUND].split())
            found.append(f"{first + place}: {part}")
            size += len(found[-1]) + 1
            at = first + place + 1
            if at < stop and (len(found) == MOST_FOUND or size > MOST_CHARACTERS):
                return "\n".join([*found, f'[stopped here; go on with lines="{at}:"]'])
        at = first + seeker.looked
        if at < stop and seeker.is_over:
            return "\n".join([*found, f'[time was up; go on with lines="{at}:"]'])
    return "\n".join(found) or f"No match for {seeker.pattern!r} in {view.unit}s {start:,} to {stop:,}."


def _paged(view: PagedView, shown: list[str], start: int, at: int, stop: int) -> str:
    more = f'; go on with lines="{at}:{stop}"' if at < stop else ""
    note = f"[{view.unit}s {start:,} to {at:,} of {view.count:,}{more}]"
    return "\n".join([*([view.header] if view.header else []), *shown, note])


def _cut(line: str, number: int) -> str:
    if len(line) <= MOST_LINE:
        return line
    return f'{line[:MOST_LINE]}... [{len(line):,} characters: lines="{number}" with offset shows any part of it]'


def _text(text: str) -> PagedView:
    ends = [match.end() for match in re.finditer("\n", text)]
    if not text.endswith("\n"):
        ends.append(len(text))

    def lines(start: int, stop: int) -> list[str]:
        begins = [ends[start - 1] if start else 0, *ends[start : stop - 1]]
        return [text[a:b].removesuffix("\n") for a, b in zip(begins, ends[start:stop], strict=True)]

    return PagedView(len(ends), "line", lines, lines)


def _items(count: int, part: Callable[[int, int], Sequence[Any]], unit: str) -> PagedView:
    def lines(start: int, stop: int) -> list[str]:
        return [f"[{number}] {one_line_repr(each)}" for number, each in enumerate(part(start, stop), start)]

    return PagedView(count, unit, lines, lambda a, b: list(map(repr, part(a, b))))
