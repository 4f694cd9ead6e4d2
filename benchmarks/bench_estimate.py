"""The error of estimated tokens, compared with the tokens that providers reported in recorded sessions.

As an agent does during a run, the bench predicts each request from earlier reports. Recorded sessions are given as
files, or as a folder in $BENCH_RECORDINGS. Without sessions, or for a session without reports, the rows are skipped.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import harness
from harness import Args, Row
from msgspec import Struct

from orch.replay.readers import Recording, read_recordings
from orch_worker.conversation.tokens import TokenEstimator

SIZE = "estimator error: size of the next request, 95th percentile (share)"
GROWTH = "estimator error: total growth of all requests (share)"
MUST, AIM = "<= 0.1", "<= 0.05"


class Foretold(Struct):
    """Predicted and reported requests, and their growth since the requests before them."""

    sizes: list[tuple[int, int]] = []
    grown: list[tuple[int, int]] = []

    def size_error(self) -> float:
        """Return the relative error of the size of a request, for the 95th of 100 requests."""
        errors = sorted(abs(told - reported) / reported for told, reported in self.sizes)
        return errors[int(0.95 * len(errors))]

    def growth_error(self) -> float:
        """Return the relative error of the growth of all requests together."""
        told, reported = (sum(column) for column in zip(*self.grown, strict=True))
        return abs(told - reported) / reported


def measure(args: Args) -> list[Row]:
    """Return two rows for each file that reports the usage of requests."""
    rows = [row for file in args.files for row in rows_of(file)]
    reason = "no recorded session was given"
    return rows or [harness.skipped(figure, reason, must=MUST, aim=AIM) for figure in (SIZE, GROWTH)]


def rows_of(file: Path) -> Iterator[Row]:
    """Yield the rows with the errors of the estimates for one file."""
    found = Foretold()
    for recording in read_recordings(file):
        foretell(recording, found)
    if not found.sizes:
        reason = "it does not report two requests of one conversation"
        yield harness.skipped(f"{file.name}: {SIZE}", reason, must=MUST, aim=AIM)
        return
    yield harness.counted(f"{file.name}, {len(found.sizes)} requests: {SIZE}", found.size_error(), must=MUST, aim=AIM)
    if found.grown:
        figure = f"{file.name}, {len(found.grown)} requests: {GROWTH}"
        yield harness.counted(figure, found.growth_error(), must=MUST, aim=AIM)


def foretell(recording: Recording, found: Foretold) -> None:
    """Add the requests of `recording`, except the first request with a report."""
    estimator = TokenEstimator(recording.ratios)
    sizes: dict[int, float] = {}
    before = (0.0, 0)
    for place, context in recording.contexts():
        for message in context:
            if id(message) not in sizes:
                sizes[id(message)] = estimator.raw(message)
        raw = sum(sizes[id(message)] for message in context)
        reported = recording.messages[place].input_tokens
        if not reported:
            continue
        if before[1]:
            told = estimator.request(raw)
            found.sizes.append((told, reported))
            if raw > before[0] and reported > before[1]:
                found.grown.append((told - before[1], reported - before[1]))
        estimator.observe(raw, reported)
        before = (raw, reported)


if __name__ == "__main__":
    harness.main(measure)
