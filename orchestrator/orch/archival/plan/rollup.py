"""Decides which records of archives to merge when their total size exceeds the budget. No I/O.

As in a log-structured merge tree, new records merge into an era, and eras of one level merge into an era of the next
level. The number of levels is unlimited, so any number of turns fits into the budget. The number of levels grows
logarithmically.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import groupby, pairwise
from typing import Final

from msgspec import Struct

__all__ = [
    "FAN_OUT",
    "RECORD_TOKENS",
    "RecordMerge",
    "RecordSize",
    "era_tokens",
    "phase_budget",
    "possible_merges",
    "record_tokens",
]

FAN_OUT: Final = 4
RECORD_TOKENS: Final = 220
GROWTH_TOKENS: Final = 60
GROWTH_STEP: Final = 10_000
ERAS: Final = 10


class RecordSize(Struct, frozen=True):
    """The size in tokens of the record of a turn or an era. The level of a turn is 0."""

    tokens: int
    level: int = 0


class RecordMerge(Struct, frozen=True):
    """A merge of the records `start` to `stop` into an era of the level `level`."""

    start: int
    stop: int
    level: int


def record_tokens(original_tokens: int) -> int:
    """Return the maximum size of a record that stands for `original_tokens` tokens, without the final answer."""
    return RECORD_TOKENS + GROWTH_TOKENS * original_tokens // GROWTH_STEP


def era_tokens(budget: int, original_tokens: int) -> int:
    """Return the maximum size of the record of an era that stands for `original_tokens` tokens.

    At least five eras fit into the budget, so that eras of one level can wait for each other. With fewer, each merge
    would rewrite almost all records, and the number of levels would grow with the number of turns.
    """
    return max(40, min(record_tokens(original_tokens), budget // ERAS))


def phase_budget(budget: int) -> int:
    """Return the maximum number of tokens of the phase records of one turn before they merge. 0 means no limit."""
    return budget // 2


def possible_merges(records: Sequence[RecordSize], budget: int) -> Iterator[RecordMerge]:
    """Yield the possible merges of `records` in order of preference. Yield nothing if `records` fit into `budget`.

    `records` is ordered from the oldest record to the newest. If a merge saves nothing, the caller tries the next
    merge.
    """
    total = sum(record.tokens for record in records)
    if not budget or total <= budget or len(records) < 2:
        return
    runs = _runs(records)
    eras = [run for run in runs if run[0] > 0]
    for level, start, stop in reversed(eras):
        if stop - start >= FAN_OUT:
            yield RecordMerge(start, stop, level + 1)
    level, start, stop = runs[-1]
    if level == 0 and stop - start > 2:
        # The latest record stays, because it is the current topic of the conversation.
        excess, end = total - budget // 2, start
        while end < stop - 1 and excess > 0:
            excess -= records[end].tokens
            end += 1
        if end - start >= 2:
            yield RecordMerge(start, end, 1)
    for level, start, stop in reversed(eras):
        if 2 <= stop - start < FAN_OUT:
            yield RecordMerge(start, stop, level + 1)
    for older, newer in reversed(list(pairwise(runs))):
        if older[0] and newer[0]:
            yield RecordMerge(older[1], newer[2], max(older[0], newer[0]) + 1)


def _runs(records: Sequence[RecordSize]) -> list[tuple[int, int, int]]:
    """Return the runs of adjacent records of the same level. Each run is a tuple of level, start and stop."""
    runs = []
    for level, group in groupby(range(len(records)), key=lambda index: records[index].level):
        indexes = list(group)
        runs.append((level, indexes[0], indexes[-1] + 1))
    return runs
