"""The pauses between readings of a streamed response."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from orch_worker.backends.http.pace import (
    BURST_BYTES,
    DRAINED_BYTES,
    UNWATCHED_SECONDS,
    WATCHED_SECONDS,
    ReadingPace,
)


class Pauses:
    """Replaces the timers of the event loop. `seconds` are the lengths of the pauses; a pause ends with `end`."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.seconds: list[float] = []
        self.end: Callable[[], object] = lambda: None
        self.cancel = lambda: None
        monkeypatch.setattr(asyncio.get_running_loop(), "call_later", self._call_later)

    def _call_later(self, seconds: float, function: Callable[..., object], *arguments: Any) -> Pauses:
        self.seconds.append(seconds)
        self.end = lambda: function(*arguments)
        return self

    async def after_reading(self, pace: ReadingPace, size: int = 100) -> None:
        """Read `size` bytes, and let the pause that follows expire."""
        task = asyncio.ensure_future(pace.after_reading(size))
        while not task.done():
            await asyncio.sleep(0)
            self.end()
        await task


@pytest.fixture
async def pauses(monkeypatch: pytest.MonkeyPatch) -> Pauses:
    return Pauses(monkeypatch)


def begun(*, watched: bool = False) -> tuple[ReadingPace, Callable[[], None]]:
    """Return the pace of a response whose content has begun, and the function that the end of the response calls."""
    on_end: list[Callable[[], None]] = []
    pace = ReadingPace(lambda: watched)
    pace.response_begun(on_end.append)
    pace.content_arrived()
    return pace, on_end[0]


@pytest.mark.parametrize(("watched", "seconds"), [(True, WATCHED_SECONDS), (False, UNWATCHED_SECONDS)])
async def test_pause_is_shorter_while_a_client_watches(pauses: Pauses, watched: bool, seconds: float) -> None:
    pace, _ = begun(watched=watched)
    await pauses.after_reading(pace)
    await pauses.after_reading(pace)
    assert pauses.seconds == [seconds, seconds]


async def test_first_content_is_read_without_a_pause(pauses: Pauses) -> None:
    pace = ReadingPace(lambda: False)
    pace.response_begun(lambda _: None)
    await pauses.after_reading(pace)
    assert pauses.seconds == []
    pace.content_arrived()
    await pauses.after_reading(pace)
    assert pauses.seconds == [UNWATCHED_SECONDS]


async def test_end_of_the_response_ends_the_pause(pauses: Pauses) -> None:
    pace, on_end = begun()
    reading = asyncio.ensure_future(pace.after_reading(100))
    await asyncio.sleep(0)
    assert not reading.done()
    on_end()
    await reading
    await pace.after_reading(100)
    assert len(pauses.seconds) == 1


async def test_nothing_pauses_after_the_complete_answer(pauses: Pauses) -> None:
    """Only the end of the stream is missing then."""
    pace, _ = begun()
    pace.stop()
    pace.content_arrived()
    await pauses.after_reading(pace)
    assert pauses.seconds == []


async def test_client_that_does_not_report_the_end_is_read_without_pauses(pauses: Pauses) -> None:
    pace = ReadingPace(lambda: False)
    pace.content_arrived()
    await pauses.after_reading(pace)
    assert pauses.seconds == []


async def test_reading_goes_on_while_more_data_is_waiting(pauses: Pauses) -> None:
    """Data that arrives faster than a model writes is not slowed down."""
    pace, _ = begun()
    for _ in range(BURST_BYTES // DRAINED_BYTES):
        await pauses.after_reading(pace, DRAINED_BYTES)
    await pauses.after_reading(pace)
    assert pauses.seconds == []
    await pauses.after_reading(pace)
    assert pauses.seconds == [UNWATCHED_SECONDS]


async def test_cancelled_pause_leaves_no_timer(monkeypatch: pytest.MonkeyPatch) -> None:
    pauses = Pauses(monkeypatch)
    cancelled: list[bool] = []
    pauses.cancel = lambda: cancelled.append(True)  # type: ignore[assignment,return-value]
    pace, _ = begun()
    reading = asyncio.ensure_future(pace.after_reading(100))
    await asyncio.sleep(0)
    reading.cancel()
    with pytest.raises(asyncio.CancelledError):
        await reading
    assert cancelled == [True]
