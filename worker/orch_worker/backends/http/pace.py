"""When the next part of a streamed response is read.

Each reading of a stream costs far more than the few characters that a model sends at a time. Therefore, what arrives
within a short interval is read together. The first content and the end of a response are read at once.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final

__all__ = ["UNWATCHED_SECONDS", "WATCHED_SECONDS", "ReadingPace"]

WATCHED_SECONDS: Final = 0.1
UNWATCHED_SECONDS: Final = 0.25
DRAINED_BYTES: Final = 8 << 10
"""A reading of at least this size means that more data may have arrived already."""
BURST_BYTES: Final = 64 << 10
"""After this number of bytes without a pause, a response arrives faster than models write, so reading goes on."""


class ReadingPace:
    """The pace at which one response is read. `is_watched` returns whether a client watches the response.

    Without a call of `response_begun`, there are no pauses, because the end of the response could be noticed too late.
    """

    def __init__(self, is_watched: Callable[[], bool]) -> None:
        self._is_watched = is_watched
        self._pausing = self._ends = False
        self._read = 0
        self._pause: asyncio.Future[None] | None = None

    def response_begun(self, on_end: Callable[[Callable[[], None]], None]) -> None:
        """Use `on_end`, which takes a function that is called as soon as the whole response has arrived."""
        self._ends = True
        on_end(self.stop)

    def content_arrived(self) -> None:
        """Pause after each reading from now on."""
        self._pausing = self._ends

    def stop(self) -> None:
        """End the current pause, and do not pause again."""
        self._pausing = self._ends = False
        if self._pause is not None:
            _finish(self._pause)

    async def after_reading(self, size: int) -> None:
        """Wait before the next reading. `size` is the number of bytes of the last reading."""
        if not self._pausing:
            return
        self._read += size
        if size >= DRAINED_BYTES:
            return
        is_burst, self._read = self._read >= BURST_BYTES, 0
        if is_burst:
            return
        loop = asyncio.get_running_loop()
        self._pause = loop.create_future()
        timer = loop.call_later(WATCHED_SECONDS if self._is_watched() else UNWATCHED_SECONDS, _finish, self._pause)
        try:
            await self._pause
        finally:
            timer.cancel()
            self._pause = None


def _finish(pause: asyncio.Future[None]) -> None:
    if not pause.done():
        pause.set_result(None)
