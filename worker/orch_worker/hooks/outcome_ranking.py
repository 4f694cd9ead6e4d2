"""Measured outcomes of choices, such as models or tools, and a ranking that is computed from the outcomes.

`rank` is a pure function. `OutcomeLog` is the file of outcomes, which all agents of a user share.
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
BASE_WEIGHT: Final = 0.1
"""The weight of an outcome if its question and the current question have no word in common."""
UNTRIED_BONUS: Final = 0.15
"""The bonus of a choice without outcomes. The bonus decreases with the number of outcomes."""
MAX_BYTES: Final = 1 << 20
MAX_OUTCOMES: Final = 1000


class RecordedOutcome(Struct, frozen=True, omit_defaults=True):
    """The outcome of one turn: the terms of its question, the choices `tried`, the successful choices, and their costs.

    The unit of `cost` is the same throughout a file. `at` is the Unix time in seconds.
    """

    at: float
    terms: tuple[str, ...]
    tried: tuple[str, ...]
    good: tuple[str, ...] = ()
    cost: dict[str, float] = {}


class RankedChoice(Struct, frozen=True):
    """A choice with its score, its chance of success, and its expected cost (None if the choice has no outcomes).

    `tried` is the number of outcomes, weighted by similarity and age.
    """

    choice: str
    score: float
    chance: float
    cost: float | None
    tried: float


def question_terms(text: str) -> tuple[str, ...]:
    """Return the search terms of a question."""
    return tuple(term.text for term in terms_of(text))


def rank(
    choices: Iterable[str],
    outcomes: Sequence[RecordedOutcome],
    terms: Iterable[str],
    now: float,
    *,
    cost_weight: float = 0.0,
) -> list[RankedChoice]:
    """Return `choices`, best first. Choices with equal scores keep their order.

    Outcomes of similar questions have the largest weight, and the weight halves every thirty days. A choice without
    outcomes gets a bonus. `cost_weight` is the amount by which cost reduces the score of the most expensive choice.
    """
    unique_choices, wanted_terms = tuple(dict.fromkeys(choices)), frozenset(terms)
    weights = [
        0.5 ** (max(0.0, now - each.at) / HALF_LIFE) * _similarity(wanted_terms, each.terms) for each in outcomes
    ]
    found: list[tuple[str, float, float, float | None]] = []
    for choice in unique_choices:
        tried = good = spent = 0.0
        for weight, each in zip(weights, outcomes, strict=True):
            if choice in each.tried:
                tried += weight
                good += weight * (choice in each.good)
                spent += weight * each.cost.get(choice, 0.0)
        found.append((choice, tried, (good + 1) / (tried + 2), spent / tried if tried else None))
    highest_cost = max((cost for *_, cost in found if cost), default=0.0)
    ranked = [
        RankedChoice(
            choice,
            chance
            + UNTRIED_BONUS / (1 + tried)
            - (cost_weight * cost / highest_cost if cost and highest_cost else 0.0),
            chance,
            cost,
            tried,
        )
        for choice, tried, chance, cost in found
    ]
    return sorted(ranked, key=lambda each: -each.score)


def _similarity(wanted_terms: frozenset[str], terms: tuple[str, ...]) -> float:
    union = wanted_terms.union(terms)
    return BASE_WEIGHT + (1 - BASE_WEIGHT) * (len(wanted_terms.intersection(terms)) / len(union) if union else 1.0)


class OutcomeLog:
    """The outcomes in the JSON Lines file at `path`. The first write creates the file.

    The file contains at most 1 MiB. Older outcomes are removed first. Lines that cannot be read are skipped.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._file_state: tuple[int, ...] = ()
        self._outcomes: tuple[RecordedOutcome, ...] = ()

    def outcomes(self) -> tuple[RecordedOutcome, ...]:
        """Return the outcomes, oldest first. The file is read only if it has changed.

        Raise OSError if reading fails.
        """
        try:
            status = os.stat(self._path)
        except FileNotFoundError:
            return ()
        file_state = (status.st_ino, status.st_size, status.st_mtime_ns)
        if file_state != self._file_state:
            self._outcomes, self._file_state = tuple(_decode_lines(self._path.read_bytes())), file_state
        return self._outcomes

    def add(self, outcome: RecordedOutcome) -> None:
        """Append `outcome` to the file. Raise OSError or StoreError if writing fails."""
        self._path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        with file_lock(self._path) as descriptor:
            line = msgspec.json.encode(outcome) + b"\n"
            if os.fstat(descriptor).st_size + len(line) > MAX_BYTES:
                lines = [msgspec.json.encode(each) for each in _decode_lines(self._path.read_bytes())][
                    1 - MAX_OUTCOMES :
                ]
                line = b"\n".join([*lines, line])
                os.ftruncate(descriptor, 0)
            os.write(descriptor, line)


def _decode_lines(data: bytes) -> Iterator[RecordedOutcome]:
    for line in data.splitlines():
        try:
            yield msgspec.json.decode(line, type=RecordedOutcome)
        except (msgspec.MsgspecError, UnicodeDecodeError):
            continue
