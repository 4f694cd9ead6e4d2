"""Slow file operations, run in threads off the root's event loop."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

from orch_protocol.core.errors import OrchError, StoreError

from ..tree.journal.entries import Entry
from ..tree.journal.journal import Journal

__all__ = ["DiskWriter"]

GROUP_SYNC_SECONDS = 0.05
THREADS = 4

T = TypeVar("T")


class DiskWriter:
    """Syncs `journal` to disk shortly after each write, and runs other slow file operations in threads.

    The threads run no functions of the user's program, because such a function could block them forever. A separate
    thread syncs the journal, so that a sync never waits for reads of large files.
    """

    def __init__(self, journal: Journal) -> None:
        self._loop = asyncio.get_running_loop()
        self._threads = ThreadPoolExecutor(THREADS, thread_name_prefix="orch-disk")
        self._sync_thread = ThreadPoolExecutor(1, thread_name_prefix="orch-sync")
        self._journal = journal
        self._sync_timer: asyncio.TimerHandle | None = None
        self._syncing: asyncio.Future[None] | None = None
        journal.log.on_dirty = self._schedule_sync

    @property
    def fault(self) -> str:
        """The reason why this root can no longer write the journal, "" if the journal can be written."""
        return self._journal.log.fault

    def do(self, work: Callable[..., T], *arguments: Any) -> asyncio.Future[T]:
        """Run `work` in a thread and return a future with the result. Raises OrchError after `close`."""
        try:
            return self._loop.run_in_executor(self._threads, work, *arguments)
        except RuntimeError as error:
            raise OrchError("this orchestrator is being closed: open another one") from error

    async def rewrite(self, change: Callable[[Sequence[Entry]], Sequence[Entry]]) -> None:
        """Replace the entries of the journal with the result of `change`. Raises StoreError."""
        while self._syncing is not None and not self._syncing.done():
            await asyncio.wait([self._syncing])
        self._journal.rewrite(change)

    async def close(self, seconds: float) -> None:
        """Accept no new work, and wait at most `seconds` for a sync in progress."""
        self._journal.log.on_dirty = None
        if self._sync_timer is not None:
            self._sync_timer.cancel()
        if self._syncing is not None:
            await asyncio.wait([self._syncing], timeout=seconds)
        for threads in (self._threads, self._sync_thread):
            threads.shutdown(wait=False, cancel_futures=True)

    def _schedule_sync(self) -> None:
        self._sync_timer = self._loop.call_later(GROUP_SYNC_SECONDS, self._sync)

    def _sync(self) -> None:
        # A failure marks the journal as failed. The next write to the journal then raises.
        try:
            self._syncing = self._loop.run_in_executor(self._sync_thread, self._journal.sync)
        except RuntimeError:  # Python starts no threads during the shutdown of the interpreter
            with contextlib.suppress(StoreError):
                self._journal.sync()
            return
        self._syncing.add_done_callback(lambda syncing: syncing.cancelled() or syncing.exception())
