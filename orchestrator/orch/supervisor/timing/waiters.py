"""Futures by topic. Each future is resolved once."""

from __future__ import annotations

import asyncio
from functools import partial
from typing import Any

from orch_protocol.core.errors import ErrorInfo, error_from

from ...tree.interface.topics import Topic

__all__ = ["Waiters", "expire"]


class Waiters:
    """Futures for topics on the running event loop.

    A future may have a `taker`, which is the agent that receives the result if the future is still pending.
    """

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._topics: dict[Topic, dict[asyncio.Future[Any], str | None]] = {}

    def watch(self, topic: Topic, taker: str | None = None) -> asyncio.Future[Any]:
        """Return a future for the next message on `topic`. A caller that stops waiting must cancel the future."""
        future: asyncio.Future[Any] = self._loop.create_future()
        self._topics.setdefault(topic, {})[future] = taker
        future.add_done_callback(partial(self._forget, topic))
        return future

    async def until(self, topic: Topic, seconds: float, taker: str | None = None) -> Any:
        """Wait at most `seconds` for `topic` and return the value. Raises TimeoutError, or the error of the topic.

        At the timeout, the future itself fails. Otherwise a result could go to a caller that has just stopped waiting.
        """
        future: asyncio.Future[Any] = self._loop.create_future()
        self._topics.setdefault(topic, {})[future] = taker
        timer = self._loop.call_later(seconds, expire, future)
        try:
            return await future
        finally:
            timer.cancel()
            # not in a callback, because a callback would need another iteration of the loop
            self._forget(topic, future)

    def taker(self, topic: Topic) -> str | None:
        """Return the agent that would receive a result of `topic` now. Return None if there is no such agent."""
        for future, taker in self._topics.get(topic, {}).items():
            if taker is not None and not future.done():
                return taker
        return None

    def notify(self, topic: Topic, value: Any = None, error: ErrorInfo | None = None) -> None:
        """Resolve all futures of `topic` with the value or the error."""
        for future in self._topics.pop(topic, ()):
            if future.done():
                continue
            if error is not None:
                future.set_exception(error_from(error))
            else:
                future.set_result(value)

    def fail(self, error: ErrorInfo) -> None:
        """Fail all futures of all topics with `error`."""
        for topic in list(self._topics):
            self.notify(topic, error=error)

    def _forget(self, topic: Topic, future: asyncio.Future[Any]) -> None:
        if not future.cancel() and not future.cancelled():
            future.exception()  # retrieve the exception, so that the event loop does not log it
        waiting = self._topics.get(topic)
        if waiting is not None and future in waiting:
            del waiting[future]
            if not waiting:
                del self._topics[topic]


def expire(future: asyncio.Future[Any]) -> None:
    """Fail `future` with TimeoutError, unless it is done."""
    if not future.done():
        future.set_exception(TimeoutError())
