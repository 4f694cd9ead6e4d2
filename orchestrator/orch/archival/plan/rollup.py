"""Which stubs merge into one, when together they have outgrown their budget. No I/O.

Like a log-structured merge tree: fresh stubs merge into an era, eras of one level into an era of the next. There is no
highest level, so any number of turns stays within the budget, at a depth that grows with its logarithm.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby
from typing import Final

from msgspec import Struct

__all__ = ["FAN", "Merge", "Stub", "era_tokens", "merge_of"]

FAN: Final = 4


class Stub(Struct, frozen=True):
    """One archived turn (level 0) or era in a conversation: `tokens` is what it keeps there."""

    tokens: int
    level: int = 0


class Merge(Struct, frozen=True):
    """Stubs `start` to `stop` are to become one era of `level`."""

    start: int
    stop: int
    level: int


def era_tokens(budget: int) -> int:
    """Return how large an era's record may be, so that eras of many levels fit the budget together."""
    return max(40, min(budget // 20, 400))


def merge_of(stubs: Sequence[Stub], budget: int) -> Merge | None:
    """Return which of `stubs`, oldest first, are to merge next; None while they fit `budget`, or nothing would help."""
    total = sum(stub.tokens for stub in stubs)
    if not budget or total <= budget or len(stubs) < 2:
        return None
    runs: list[tuple[int, int, int]] = []
    for level, group in groupby(range(len(stubs)), key=lambda place: stubs[place].level):
        places = list(group)
        runs.append((level, places[0], places[-1] + 1))
    crowded = [run for run in runs if run[0] > 0 and run[2] - run[1] >= FAN]
    if crowded:
        level, start, stop = crowded[-1]
        return Merge(start, stop, level + 1)
    level, start, stop = runs[-1]
    if level == 0 and stop - start > 2:
        # The latest stays as it is: it is what the conversation is about just now.
        left, end = total - budget // 2, start
        while end < stop - 1 and left > 0:
            left -= stubs[end].tokens
            end += 1
        if end - start >= 2:
            return Merge(start, end, 1)
    eras = [run for run in runs if run[0] > 0]
    same = [run for run in eras if run[2] - run[1] >= 2]
    if same:
        level, start, stop = same[-1]
        return Merge(start, stop, level + 1)
    if len(eras) >= 2:
        return Merge(eras[-2][1], eras[-1][2], max(eras[-2][0], eras[-1][0]) + 1)
    return None
