"""Steps of services that continue after their caller stopped waiting, for example because of Ctrl-C."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, Final, TypeVar

__all__ = ["UncancelledSteps"]

T = TypeVar("T")
UNDO_SECONDS: Final = 5.0


class UncancelledSteps:
    """The steps in progress. When the root is closed, they have a moment to end."""

    def __init__(self) -> None:
        self._tasks: set[asyncio.Task[Any]] = set()

    def start(self, work: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        """Run `work` in a task and return the task. Its exception need not be retrieved."""
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._remove_task)
        return task

    async def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Return the result of `work`. If the call is canceled, `work` continues."""
        return await asyncio.shield(self.start(work))

    async def undo(self, work: Coroutine[Any, Any, None]) -> None:
        """Run `work`, which undoes a canceled call, and wait for it at most 5 s. It continues after that."""
        await asyncio.wait([self.start(work)], timeout=UNDO_SECONDS)

    async def close(self, seconds: float) -> None:
        """Wait at most `seconds` until all steps have ended."""
        loop = asyncio.get_running_loop()
        end = loop.time() + seconds
        while self._tasks and (remaining := end - loop.time()) > 0:
            await asyncio.wait(self._tasks, timeout=remaining)

    def _remove_task(self, task: asyncio.Task[Any]) -> None:
        self._tasks.discard(task)
        if not task.cancelled():
            task.exception()  # the caller may have left
