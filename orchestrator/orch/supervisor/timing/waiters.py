"""Who waits for what: futures by topic, told once."""

from __future__ import annotations

import asyncio
from functools import partial
from typing import Any

from orch_protocol.core.errors import ErrorInfo, error_from

__all__ = ["SETTLED", "Waiters", "expire"]

SETTLED = "settled"
"""The topic of what was put aside, and is free again."""


class Waiters:
    """Futures of topics (`query:ID`, `up:ID`, `gone:ID:N`) on the running event loop.

    A waiter may be the `taker` of what it waits for: as long as it still waits, what it is told is its own.
    """

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._topics: dict[str, dict[asyncio.Future[Any], str | None]] = {}

    def watch(self, topic: str, taker: str | None = None) -> asyncio.Future[Any]:
        """Return a future of `topic`, which hears of it from this very moment on. Cancel it when done with it."""
        future: asyncio.Future[Any] = self._loop.create_future()
        self._topics.setdefault(topic, {})[future] = taker
        future.add_done_callback(partial(self._forget, topic))
        return future

    async def until(self, topic: str, seconds: float, taker: str | None = None) -> Any:
        """Wait for `topic` to be told, at most `seconds`. Raises TimeoutError, or the error that is told.

        The time runs out for the future itself, so that nothing is told to somebody who has just given up.
        """
        future: asyncio.Future[Any] = self._loop.create_future()
        self._topics.setdefault(topic, {})[future] = taker
        timer = self._loop.call_later(seconds, expire, future)
        try:
            return await future
        finally:
            timer.cancel()
            self._forget(topic, future)  # here rather than by a callback, which would be one more round of the loop

    def taker(self, topic: str) -> str | None:
        """Return who takes what is told of `topic` now, None if nobody does."""
        for future, taker in self._topics.get(topic, {}).items():
            if taker is not None and not future.done():
                return taker
        return None

    def tell(self, topic: str, value: Any = None, error: ErrorInfo | None = None) -> None:
        """Give everybody who waits for `topic` the value, or the error."""
        for future in self._topics.pop(topic, ()):
            if future.done():
                continue
            if error is not None:
                future.set_exception(error_from(error))
            else:
                future.set_result(value)

    def fail(self, error: ErrorInfo) -> None:
        """Give everybody who waits for anything the error."""
        for topic in list(self._topics):
            self.tell(topic, error=error)

    def _forget(self, topic: str, future: asyncio.Future[Any]) -> None:
        if not future.cancel() and not future.cancelled():
            future.exception()  # whoever waited has it; one that nobody waited for is no news to the event loop
        waiting = self._topics.get(topic)
        if waiting is not None and future in waiting:
            del waiting[future]
            if not waiting:
                del self._topics[topic]


def expire(future: asyncio.Future[Any]) -> None:
    """Fail `future` with TimeoutError, unless it is done."""
    if not future.done():
        future.set_exception(TimeoutError())
