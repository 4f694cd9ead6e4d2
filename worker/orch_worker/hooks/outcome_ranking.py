"""What was tried, how it went, and what is best tried next: measured outcomes, and a ranking that they change.

The ranking is a function of data. `OutcomeLog` is the file behind it, which all agents of a user add to.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Final

import msgspec
from msgspec import Struct

from ..backends.offline.bm25 import terms_of
from ..system.atomic_json import file_lock

__all__ = ["OutcomeLog", "RankedChoice", "RecordedOutcome", "question_terms", "rank"]

HALF_LIFE: Final = 30 * 86400.0
UNLIKE: Final = 0.1
"""What an outcome weighs that has no word in common with the question."""
CURIOSITY: Final = 0.15
"""What something that was never tried is worth, over what it is known for."""
MOST_BYTES: Final = 1 << 20
KEPT: Final = 1000


class RecordedOutcome(Struct, frozen=True, omit_defaults=True):
    """One turn: the terms of its question, what was `tried` in it, which of that did well, and what each took.

    `cost` is in whatever unit its file has throughout; `at` is Unix time in seconds.
    """

    at: float
    terms: tuple[str, ...]
    tried: tuple[str, ...]
    good: tuple[str, ...] = ()
    cost: dict[str, float] = {}


class RankedChoice(Struct, frozen=True):
    """One choice: its score, the chance that it does well, the cost to be expected (None: never tried).

    `tried` is how many outcomes speak for that, likeness and age taken into account.
    """

    choice: str
    score: float
    chance: float
    cost: float | None
    tried: float


def question_terms(text: str) -> tuple[str, ...]:
    """Return what a question is about, as terms."""
    return tuple(term.text for term in terms_of(text))


def rank(
    choices: Iterable[str],
    outcomes: Sequence[RecordedOutcome],
    about: Iterable[str],
    now: float,
    *,
    thrift: float = 0.0,
) -> list[RankedChoice]:
    """Return `choices`, the best one first; equal ones stay in order.

    Outcomes of questions like this one weigh most, and half as much after each thirty days. What was never tried is
    given the benefit of the doubt. `thrift` is how much chance of doing well the dearest choice has to make up for.
    """
    given, wanted = tuple(dict.fromkeys(choices)), frozenset(about)
    weights = [0.5 ** (max(0.0, now - each.at) / HALF_LIFE) * _likeness(wanted, each.terms) for each in outcomes]
    found: list[tuple[str, float, float, float | None]] = []
    for choice in given:
        tried = good = spent = 0.0
        for weight, each in zip(weights, outcomes, strict=True):
            if choice in each.tried:
                tried += weight
                good += weight * (choice in each.good)
                spent += weight * each.cost.get(choice, 0.0)
        found.append((choice, tried, (good + 1) / (tried + 2), spent / tried if tried else None))
    dearest = max((cost for *_, cost in found if cost), default=0.0)
    ranked = [
        RankedChoice(
            choice,
            chance + CURIOSITY / (1 + tried) - (thrift * cost / dearest if cost and dearest else 0.0),
            chance,
            cost,
            tried,
        )
        for choice, tried, chance, cost in found
    ]
    return sorted(ranked, key=lambda each: -each.score)


def _likeness(wanted: frozenset[str], terms: tuple[str, ...]) -> float:
    union = wanted.union(terms)
    return UNLIKE + (1 - UNLIKE) * (len(wanted.intersection(terms)) / len(union) if union else 1.0)


class OutcomeLog:
    """The outcomes in the file at `path`, a line of JSON each. It is made when there is something to keep.

    It holds at most 1 MiB: then the oldest leave it. A line that cannot be read is left out.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._mark: tuple[int, ...] = ()
        self._outcomes: tuple[RecordedOutcome, ...] = ()

    def outcomes(self) -> tuple[RecordedOutcome, ...]:
        """Return what is known, the oldest first; the file is read when it has changed. Raises OSError."""
        try:
            found = os.stat(self._path)
        except FileNotFoundError:
            return ()
        mark = (found.st_ino, found.st_size, found.st_mtime_ns)
        if mark != self._mark:
            self._outcomes, self._mark = tuple(_decoded(self._path.read_bytes())), mark
        return self._outcomes

    def add(self, outcome: RecordedOutcome) -> None:
        """Keep `outcome`. Raises OSError, StoreError."""
        self._path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        with file_lock(self._path) as descriptor:
            line = msgspec.json.encode(outcome) + b"\n"
            if os.fstat(descriptor).st_size + len(line) > MOST_BYTES:
                kept = [msgspec.json.encode(each) for each in _decoded(self._path.read_bytes())][1 - KEPT :]
                line = b"\n".join([*kept, line])
                os.ftruncate(descriptor, 0)
            os.write(descriptor, line)


def _decoded(data: bytes) -> Iterator[RecordedOutcome]:
    for line in data.splitlines():
        try:
            yield msgspec.json.decode(line, type=RecordedOutcome)
        except (msgspec.MsgspecError, UnicodeDecodeError):
            continue
