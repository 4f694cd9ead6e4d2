"""What takes its time on a disk, off the root's event loop."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

from orch_protocol.core.errors import StoreError

from ..tree.journal.entries import Entry
from ..tree.journal.journal import Journal

__all__ = ["DiskWriter"]

GROUP_SYNC_SECONDS = 0.05
THREADS = 4

T = TypeVar("T")


class DiskWriter:
    """Brings `journal` to the disk soon after it was written to, and does other slow work on files.

    Its threads are its own: functions of the user's program, which may block for ever, cannot take them up. Nor does
    the journal wait for one while large files are read.
    """

    def __init__(self, journal: Journal) -> None:
        self._loop = asyncio.get_running_loop()
        self._threads = ThreadPoolExecutor(THREADS, thread_name_prefix="orch-disk")
        self._syncer = ThreadPoolExecutor(1, thread_name_prefix="orch-sync")
        self._journal = journal
        self._due: asyncio.TimerHandle | None = None
        self._syncing: asyncio.Future[None] | None = None
        journal.log.on_dirty = self._sync_soon

    @property
    def fault(self) -> str:
        """Why the journal can be written no more, by this root, "" as long as it can."""
        return self._journal.log.fault

    def do(self, work: Callable[..., T], *arguments: Any) -> asyncio.Future[T]:
        """Return a future of what `work` returns."""
        return self._loop.run_in_executor(self._threads, work, *arguments)

    async def rewrite(self, change: Callable[[Sequence[Entry]], Sequence[Entry]]) -> None:
        """Let the journal's entries be what `change` makes of them. Raises StoreError."""
        while self._syncing is not None and not self._syncing.done():
            await asyncio.wait([self._syncing])
        self._journal.rewrite(change)

    async def close(self, seconds: float) -> None:
        """Begin nothing more, and wait for what is under way, at most so long."""
        self._journal.log.on_dirty = None
        if self._due is not None:
            self._due.cancel()
        if self._syncing is not None:
            await asyncio.wait([self._syncing], timeout=seconds)
        for threads in (self._threads, self._syncer):
            threads.shutdown(wait=False, cancel_futures=True)

    def _sync_soon(self) -> None:
        self._due = self._loop.call_later(GROUP_SYNC_SECONDS, self._sync)

    def _sync(self) -> None:
        # A failure ends the journal, and the next that writes to it is told.
        try:
            self._syncing = self._loop.run_in_executor(self._syncer, self._journal.sync)
        except RuntimeError:  # the program is ending, and Python starts no more threads
            with contextlib.suppress(StoreError):
                self._journal.sync()
            return
        self._syncing.add_done_callback(lambda syncing: syncing.cancelled() or syncing.exception())
