"""A pool of the open archives of many agents.

The first use of an archive opens its files. Files without recent use are closed.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Generator
from functools import partial
from pathlib import Path
from typing import Any, Concatenate, Final, ParamSpec, Protocol, TypeVar

from orch_protocol.core.errors import OrchError
from orch_protocol.services.archives.archiving import SummaryRequest

from .catalog import ArchiveRecord
from .search import Search
from .session_archives import SessionArchives

__all__ = ["ArchivePool", "OpenArchives", "ThreadRunner"]

MAX_OPEN: Final = 64
IDLE_SECONDS: Final = 600.0
CLOSE_SECONDS: Final = 2.0

P = ParamSpec("P")
T = TypeVar("T")


class ThreadRunner(Protocol):
    """A function that runs another function in a thread."""

    def __call__(self, work: Callable[..., T], *arguments: Any) -> asyncio.Future[T]:
        """Run `work` and return a future with the result."""


class OpenArchives:
    """The archives of one agent and the index of these archives. Only one thread at a time uses this object."""

    def __init__(self, folder: Path) -> None:
        self.archives = SessionArchives(folder)
        self.search = Search(self.archives)
        self.summary_requests: dict[str, Generator[SummaryRequest, str, str | None]] = {}

    def catch_up(self) -> list[ArchiveRecord]:
        """Read the entries that the agent has appended since the last call, and return the new archives."""
        new = self.archives.catch_up()
        for record in new:
            self.search.add_archive(record)
        return new

    def close(self) -> None:
        """Discard all data and close the index. The next use reads everything again."""
        self.summary_requests.clear()
        self.search.close()
        self.archives.forget()


class _PoolEntry:
    """The open archives of one agent, with a lock and a number of users."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.opened = OpenArchives(folder)
        self.lock = asyncio.Lock()
        self.users = 0
        self.used_at = 0.0


class ArchivePool:
    """Open archives by folder.

    At most `limit` folders without users stay open, and only for `seconds` after their last use.
    `run_in_thread` runs a function in a thread.
    """

    def __init__(self, run_in_thread: ThreadRunner, *, limit: int = MAX_OPEN, seconds: float = IDLE_SECONDS) -> None:
        self._run_in_thread = run_in_thread
        self._max_open = limit
        self._seconds = seconds
        self._entries: dict[Path, _PoolEntry] = {}  # the most recently used folder is the last
        self._tasks: set[asyncio.Task[Any]] = set()
        self._timer: asyncio.TimerHandle | None = None
        self._closed = False

    def folders(self) -> list[Path]:
        """Return the folders of the open archives. The most recently used folder is the last."""
        return list(self._entries)

    async def work(
        self, folder: Path, operation: Callable[Concatenate[OpenArchives, P], T], *arguments: P.args, **named: P.kwargs
    ) -> T:
        """Call `operation` with exclusive access to the archives of `folder`. Return the result of `operation`.

        If the caller is canceled, the thread continues, and the next caller waits for the end of `operation`. Raises
        OrchError after `close`.
        """
        if self._closed:
            raise OrchError("the archives are being closed together with their orchestrator; open another orchestrator")
        entry = self._entries.pop(folder, None) or _PoolEntry(folder)
        self._entries[folder] = entry
        return await asyncio.shield(self._start_task(entry, lambda opened: operation(opened, *arguments, **named)))

    async def close(self) -> None:
        """Reject new work, wait at most 2 s for running work, then close all archives that have no users."""
        self._closed = True
        if self._timer is not None:
            self._timer.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=CLOSE_SECONDS)
        for entry in self._entries.values():
            if not entry.users:
                entry.opened.close()
        self._entries.clear()

    def _start_task(self, entry: _PoolEntry, operation: Callable[[OpenArchives], T]) -> asyncio.Task[T]:
        entry.users += 1
        task = asyncio.get_running_loop().create_task(self._run_exclusively(entry, operation))
        self._tasks.add(task)
        task.add_done_callback(partial(self._finish_task, entry, operation is OpenArchives.close))
        return task

    async def _run_exclusively(self, entry: _PoolEntry, operation: Callable[[OpenArchives], T]) -> T:
        try:
            async with entry.lock:
                return await self._run_in_thread(operation, entry.opened)
        finally:
            entry.users -= 1
            entry.used_at = asyncio.get_running_loop().time()

    def _finish_task(self, entry: _PoolEntry, closed: bool, task: asyncio.Task[Any]) -> None:
        self._tasks.discard(task)
        if closed and not entry.users and self._entries.get(entry.folder) is entry:
            del self._entries[entry.folder]
        if not task.cancelled():
            task.exception()  # a waiting caller gets the exception; this line keeps asyncio from logging it too
        if not self._closed:
            self._close_unused()

    def _close_unused(self) -> None:
        """Close unused archives that exceed the limit or have been unused for too long."""
        loop = asyncio.get_running_loop()
        idle = [entry for entry in self._entries.values() if not entry.users]
        for number, entry in enumerate(idle):
            if len(idle) - number > self._max_open or loop.time() - entry.used_at >= self._seconds:
                # The entry stays in the pool until the archives are closed, because only one owner at a time may use an
                # index.
                self._start_task(entry, OpenArchives.close)
        if idle and self._timer is None:
            self._timer = loop.call_later(self._seconds, self._on_timer)

    def _on_timer(self) -> None:
        self._timer = None
        self._close_unused()
