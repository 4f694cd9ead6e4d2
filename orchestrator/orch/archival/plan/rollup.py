"""Which stubs merge into one, when together they have outgrown their budget. No I/O.

Like a log-structured merge tree: fresh stubs merge into an era, eras of one level into an era of the next. There is no
highest level, so any number of turns stays within the budget, at a depth that grows with its logarithm.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import groupby, pairwise
from typing import Final

from msgspec import Struct

__all__ = ["FAN_OUT", "RecordMerge", "RecordSize", "era_tokens", "phase_budget", "possible_merges", "preferred_merge"]

FAN_OUT: Final = 4


class RecordSize(Struct, frozen=True):
    """One archived turn (level 0) or era in a conversation: `tokens` is what it keeps there."""

    tokens: int
    level: int = 0


class RecordMerge(Struct, frozen=True):
    """Stubs `start` to `stop` are to become one era of `level`."""

    start: int
    stop: int
    level: int


def era_tokens(budget: int) -> int:
    """Return how large an era's record may be, so that eras of many levels fit the budget together."""
    return max(40, min(budget // 20, 400))


def phase_budget(budget: int) -> int:
    """Return how many tokens the records of one turn's phases may take of `budget` before they merge; 0: never."""
    return budget // 2


def preferred_merge(stubs: Sequence[RecordSize], budget: int) -> RecordMerge | None:
    """Return the preferred merge of `stubs`, oldest first; None if they fit `budget` or no two of them can merge."""
    return next(possible_merges(stubs, budget), None)


def possible_merges(stubs: Sequence[RecordSize], budget: int) -> Iterator[RecordMerge]:
    """Yield the possible merges of `stubs`, oldest first, in order of preference; none if they fit `budget`.

    A caller that refuses one merge, because it frees nothing, takes the next.
    """
    total = sum(stub.tokens for stub in stubs)
    if not budget or total <= budget or len(stubs) < 2:
        return
    runs = _runs(stubs)
    eras = [run for run in runs if run[0] > 0]
    for level, start, stop in reversed(eras):
        if stop - start >= FAN_OUT:
            yield RecordMerge(start, stop, level + 1)
    level, start, stop = runs[-1]
    if level == 0 and stop - start > 2:
        # The latest stub stays: it is what the conversation is about now.
        left, end = total - budget // 2, start
        while end < stop - 1 and left > 0:
            left -= stubs[end].tokens
            end += 1
        if end - start >= 2:
            yield RecordMerge(start, end, 1)
    for level, start, stop in reversed(eras):
        if 2 <= stop - start < FAN_OUT:
            yield RecordMerge(start, stop, level + 1)
    for older, newer in reversed(list(pairwise(runs))):
        if older[0] and newer[0]:
            yield RecordMerge(older[1], newer[2], max(older[0], newer[0]) + 1)


def _runs(stubs: Sequence[RecordSize]) -> list[tuple[int, int, int]]:
    """Return the runs of neighbors of one level, each as its level, start and stop."""
    runs = []
    for level, group in groupby(range(len(stubs)), key=lambda place: stubs[place].level):
        places = list(group)
        runs.append((level, places[0], places[-1] + 1))
    return runs
