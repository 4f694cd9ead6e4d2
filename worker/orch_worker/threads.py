"""Threads in which plain functions run for an event loop that does not wait longer for them than it wants to."""

from __future__ import annotations

import asyncio
import threading
from collections import Counter
from collections.abc import Callable
from queue import SimpleQueue
from typing import Any

__all__ = ["Overdue", "Threads"]

Job = Callable[[], None]


class Overdue(Exception):
    """A function did not return in time, and runs on."""


class Threads:
    """As many threads as functions run at once. One that hangs keeps its thread, and holds up nobody else.

    A thread cannot be ended: `overdue` counts the functions that were given up and run on, by key.
    """

    def __init__(self) -> None:
        self.overdue: Counter[str] = Counter()
        self._idle: list[SimpleQueue[Job | None]] = []

    async def run(self, key: str, function: Callable[[], Any], seconds: float) -> Any:
        """Return what `function` returns, or raise what it raises. Raises Overdue after `seconds`."""
        loop = asyncio.get_running_loop()
        done: asyncio.Future[Any] = loop.create_future()
        queue = self._idle.pop() if self._idle else _started()

        def job() -> None:
            value, error = None, None
            try:
                value = function()
            except BaseException as raised:
                error = raised
            try:
                loop.call_soon_threadsafe(self._finish, key, queue, done, value, error)
            except RuntimeError:
                queue.put(None)  # the loop is closed: nobody will need this thread again

        queue.put(job)
        try:
            await asyncio.wait({done}, timeout=seconds)
            if done.done():
                return done.result()
            raise Overdue
        finally:
            if not done.done():
                self.overdue[key] += 1
                done.cancel()

    def close(self) -> None:
        """End the threads that do nothing."""
        while self._idle:
            self._idle.pop().put(None)

    def _finish(
        self,
        key: str,
        queue: SimpleQueue[Job | None],
        done: asyncio.Future[Any],
        value: Any,
        error: BaseException | None,
    ) -> None:
        self._idle.append(queue)
        if done.done():
            self.overdue[key] -= 1
            if not self.overdue[key]:
                del self.overdue[key]
        elif error is None:
            done.set_result(value)
        elif isinstance(error, Exception) and not isinstance(error, StopIteration):
            done.set_exception(error)
        else:
            # None of these passes from a thread through a future and an event loop unharmed.
            done.set_exception(RuntimeError(f"{type(error).__name__}: {error}"))


def _started() -> SimpleQueue[Job | None]:
    queue: SimpleQueue[Job | None] = SimpleQueue()
    threading.Thread(target=_serve, args=(queue,), name="orch hook", daemon=True).start()
    return queue


def _serve(queue: SimpleQueue[Job | None]) -> None:
    while (job := queue.get()) is not None:
        job()
        del job
