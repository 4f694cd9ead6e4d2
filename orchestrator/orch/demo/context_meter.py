"""How large the context of a session was at each model call, and what it would have been without archival."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Final

from msgspec import Struct

from ..replay.readers import Recording, read_recordings, scale_of
from ..replay.report import ReplayPricing, replay

__all__ = ["Course", "course_of", "read_session", "session_cost"]

POLICIES: Final = ("none", "balanced")


class Course(Struct, frozen=True):
    """Tokens in context, one value per model call so far."""

    without: tuple[int, ...]
    archived: tuple[int, ...]

    @property
    def sent_without(self) -> int:
        """Tokens sent with all requests together, without archival."""
        return sum(self.without)

    @property
    def sent(self) -> int:
        """Tokens sent with all requests together."""
        return sum(self.archived)


def read_session(file: Path) -> Recording:
    """Return the session recorded in `file`, which a worker may be writing."""
    (recording,) = read_recordings(file)
    return recording


def course_of(recording: Recording) -> Course:
    """Return the sizes of the requests. Those with archival are what the backend reported."""
    scale = scale_of(recording)
    without: list[int] = []
    archived: list[int] = []
    calls = set(recording.calls)
    full = scale.beside
    for place, each in enumerate(recording.messages):
        if place in calls:
            without.append(full)
            archived.append(each.input_tokens or full)
        full += scale.size(each.message)
    return Course(tuple(without), tuple(archived))


def session_cost(recording: Recording, folder: Path, terms: ReplayPricing) -> Sequence[float]:
    """Return the cost in dollars without archival and with it, under the prices of `terms` with prompt caching.

    Archives of the calculation go to `folder`.
    """
    outcomes = [replay([recording], name, terms, folder) for name in POLICIES]
    return [outcome.bill.units * terms.usd / 1e6 for outcome in outcomes]
