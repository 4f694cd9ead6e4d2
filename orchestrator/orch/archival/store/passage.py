"""Finds the lines of an archived message that match a query, and the passage around them."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from itertools import accumulate
from typing import Final

from msgspec import Struct
from msgspec.structs import replace

from orch_worker.conversation.archive_text import EntryLines, clip_line

from .query import Query

__all__ = ["PASSAGE_CHARS", "LineMatch", "below_root", "excerpt", "match_lines", "passage"]

PASSAGE_CHARS: Final = 310
CONTEXT_LINES: Final = 2
NEIGHBOR_CHARS: Final = 90
MAX_OCCURRENCES: Final = 400
"""Maximum number of occurrences of a term that are examined in one message."""
LINE_SHARE: Final = 0.5
WINDOW_SHARE: Final = 0.35
ENTRY_SHARE: Final = 0.15
STEM_SHARE: Final = 0.7
"""The weight of another form of a word, such as "warns" for "warning"."""


class LineMatch(Struct, frozen=True):
    """The line of a message that matches a query best.

    `position` and `length` are the matching part of the line. `coverage` is the weighted share of the query's terms in
    the line, the lines around it and the message, from 0 to 1. `terms` maps the numbers of matching lines to the
    indexes of their terms.
    """

    line: int
    position: int
    length: int
    coverage: float
    terms: dict[int, set[int]]


def match_lines(entry: EntryLines, query: Query, weights: Sequence[float]) -> LineMatch | None:
    """Return the best line of `entry` for the terms of `query`. Return None if no term occurs.

    A path in a query occurs on each line of an edit of this file.
    """
    text = entry.text.lower()
    starts = [0, *accumulate(len(line.lower()) + 1 for line in entry.lines)]
    found: dict[int, set[int]] = {}
    places: dict[tuple[int, int], tuple[int, int]] = {}
    whole: dict[int, float] = {}
    for index, term in enumerate(query.terms):
        for count, (start, end) in enumerate(term.occurrences(text)):
            if count == MAX_OCCURRENCES:
                break
            line = bisect_right(starts, start) - 1
            found.setdefault(line, set()).add(index)
            is_whole = not (text[start - 1 : start].isalnum() or text[end : end + 1].isalnum())
            if is_whole or (line, index) not in places:
                places[line, index] = (start - starts[line], end - start)
            if is_whole:
                whole[index] = 1.0
        if index in whole:
            continue
        for count, (start, end) in enumerate(term.stem_occurrences(text)):
            if count == MAX_OCCURRENCES:
                break
            line = bisect_right(starts, start) - 1
            found.setdefault(line, set()).add(index)
            places.setdefault((line, index), (start - starts[line], end - start))
            whole[index] = STEM_SHARE
    for first, end, path in entry.edits:
        named = {index for index, term in enumerate(query.terms) if term.is_path and term.names(path)}
        if named:
            found.setdefault(first, set()).update(named)
            whole.update(dict.fromkeys(named, 1.0))
            for line in [line for line in found if first <= line < end]:
                found[line] |= named
    if not found:
        return None
    value = [weight * (whole.get(index, 0.5)) for index, weight in enumerate(weights)]
    total = sum(weights) or 1.0

    def covered(indexes: set[int]) -> float:
        return sum(value[index] for index in indexes) / total

    def around(line: int) -> set[int]:
        near = (found.get(line + step, ()) for step in range(-CONTEXT_LINES, CONTEXT_LINES + 1))
        return set().union(*near)

    scores = {line: LINE_SHARE * covered(terms) + WINDOW_SHARE * covered(around(line)) for line, terms in found.items()}
    best = max(scores, key=lambda line: (round(scores[line], 6), -line))
    heaviest = max(found[best], key=lambda index: (value[index], (best, index) in places))
    position, length = places.get((best, heaviest), (0, 0))
    coverage = scores[best] + ENTRY_SHARE * covered(set().union(*found.values()))
    return LineMatch(best, position, length, coverage, found)


def passage(entry: EntryLines, match: LineMatch, chars: int = PASSAGE_CHARS) -> tuple[str, int]:
    """Return the matching line of `entry` with two lines before and after it, in at most `chars` characters.

    The second value is the row of the matching line in the text.

    The line of the call is shown for a line of an edit. If there is room, lines with further terms follow. A matching
    part that is longer than `chars` is shown completely.
    """
    lines = entry.lines
    room = max(chars - 2 * NEIGHBOR_CHARS, chars // 2, match.length + 6)
    best = clip_line(lines[match.line], room, match.position, match.length)
    shown, room = {match.line: best}, chars - len(best)
    wanted = [first for first, end, _ in entry.edits if first < match.line < end]
    wanted += [match.line + step for step in (1, -1, 2, -2)]
    seen = set(match.terms.get(match.line, ()))
    further = sorted(match.terms, key=lambda line: (-len(match.terms[line] - seen), abs(line - match.line)))
    for line in [*wanted, *(line for line in further if match.terms[line] - seen)]:
        if line in shown or not 0 <= line < len(lines):
            continue
        end = len(lines[line]) if line in wanted[:-4] else 0  # the name of the file is at the end of a call's line
        text = clip_line(lines[line], min(NEIGHBOR_CHARS, room - 5), end)
        if room - len(text) < 5:
            break
        shown[line] = text
        seen |= match.terms.get(line, set())
        room -= len(text) + 5  # a newline, and a mark for a gap
    rows: list[str] = []
    previous = None
    row = 0
    for line in sorted(shown):
        if previous is not None and line > previous + 1:
            rows.append("...")
        if line == match.line:
            row = len(rows)
        rows.append(shown[line])
        previous = line
    first = next((number for number, text in enumerate(rows) if text), 0)
    return "\n".join(rows[first:]).rstrip("\n"), max(0, row - first)


def below_root(entry: EntryLines, match: LineMatch, root: str) -> tuple[EntryLines, LineMatch]:
    """Return `entry` with the paths below the folder `root` relative to it, and the same match in it."""
    prefix = f"{root}/"
    lines = tuple(line.replace(prefix, "") if prefix in line else line for line in entry.lines)
    position = len(entry.lines[match.line][: match.position].replace(prefix, ""))
    return replace(entry, lines=lines), replace(match, position=position)


def excerpt(text: str, position: int, length: int, chars: int = PASSAGE_CHARS) -> str:
    """Return the part of `text` around the `length` characters at `position`, in at most `chars` characters."""
    chars = max(chars - 6, length)
    start = max(0, position - (chars - length) // 2)
    line = text.rfind("\n", start, position)
    start = line + 1 if line >= 0 and position - line > 40 else start
    end = min(len(text), max(position + length, start + chars))
    return f"{'...' if start else ''}{text[start:end]}{'...' if end < len(text) else ''}"
