"""The archives of many agents, each opened when it is needed and given up when nobody has asked for long."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Generator
from functools import partial
from pathlib import Path
from typing import Any, Concatenate, Final, ParamSpec, Protocol, TypeVar

from orch_protocol.core.errors import OrchError
from orch_protocol.services.archiving import SummaryRequest

from .catalog import ArchiveRecord
from .search import Search
from .session_archives import SessionArchives

__all__ = ["ArchivePool", "Do", "OpenArchives"]

MAX_OPEN: Final = 64
IDLE_SECONDS: Final = 600.0
CLOSE_SECONDS: Final = 2.0

P = ParamSpec("P")
T = TypeVar("T")


class Do(Protocol):
    """Runs a function in a thread."""

    def __call__(self, work: Callable[..., T], *arguments: Any) -> asyncio.Future[T]:
        """Return a future of what `work` returns."""


class OpenArchives:
    """The ledger of one agent and the index over it. One thread at a time works with them."""

    def __init__(self, folder: Path) -> None:
        self.ledger = SessionArchives(folder)
        self.search = Search(self.ledger)
        self.asking: dict[str, Generator[SummaryRequest, str, str | None]] = {}

    def catch_up(self) -> list[ArchiveRecord]:
        """Take in what the agent has recorded since, and return the archives that are new."""
        new = self.ledger.catch_up()
        for record in new:
            self.search.added(record)
        return new

    def close(self) -> None:
        """Forget everything and close the index. All of it is read again when it is needed."""
        self.asking.clear()
        self.search.close()
        self.ledger.forget()


class _PoolEntry:
    """Where the shelves of one agent are, while anybody works with them or has of late."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.shelves = OpenArchives(folder)
        self.lock = asyncio.Lock()
        self.users = 0
        self.used_at = 0.0


class ArchivePool:
    """Shelves by folder, on the running event loop: at most `most` that nobody works with, none idle for `seconds`.

    `do` runs a function in a thread.
    """

    def __init__(self, do: Do, *, most: int = MAX_OPEN, seconds: float = IDLE_SECONDS) -> None:
        self._do = do
        self._most = most
        self._seconds = seconds
        self._places: dict[Path, _PoolEntry] = {}  # the latest used last
        self._jobs: set[asyncio.Task[Any]] = set()
        self._timer: asyncio.TimerHandle | None = None
        self._closed = False

    def folders(self) -> list[Path]:
        """Return the folders whose shelves are open, the latest used last."""
        return list(self._places)

    async def work(
        self, folder: Path, act: Callable[Concatenate[OpenArchives, P], T], *arguments: P.args, **named: P.kwargs
    ) -> T:
        """Return what `act` returns when it is called with the shelves of `folder`, while nobody else works with them.

        Who gives up waiting does not end it: a thread goes on, and the next one still waits for its turn. Raises
        OrchError after `close`.
        """
        if self._closed:
            raise OrchError("the archives are being closed with their orchestrator: open another one")
        place = self._places.pop(folder, None) or _PoolEntry(folder)
        self._places[folder] = place
        return await asyncio.shield(self._begin(place, lambda shelves: act(shelves, *arguments, **named)))

    async def close(self) -> None:
        """Begin nothing more, wait for what is under way (at most 2 s), and close what nobody works with."""
        self._closed = True
        if self._timer is not None:
            self._timer.cancel()
        if self._jobs:
            await asyncio.wait(self._jobs, timeout=CLOSE_SECONDS)
        for place in self._places.values():
            if not place.users:
                place.shelves.close()
        self._places.clear()

    def _begin(self, place: _PoolEntry, act: Callable[[OpenArchives], T]) -> asyncio.Task[T]:
        place.users += 1
        job = asyncio.get_running_loop().create_task(self._in_turn(place, act))
        self._jobs.add(job)
        job.add_done_callback(partial(self._done, place, act is OpenArchives.close))
        return job

    async def _in_turn(self, place: _PoolEntry, act: Callable[[OpenArchives], T]) -> T:
        try:
            async with place.lock:
                return await self._do(act, place.shelves)
        finally:
            place.users -= 1
            place.used_at = asyncio.get_running_loop().time()

    def _done(self, place: _PoolEntry, closed: bool, job: asyncio.Task[Any]) -> None:
        self._jobs.discard(job)
        if closed and not place.users and self._places.get(place.folder) is place:
            del self._places[place.folder]
        if not job.cancelled():
            job.exception()  # whoever still waits has it
        if not self._closed:
            self._tidy()

    def _tidy(self) -> None:
        """Give up what is too much, and what was not used for long."""
        loop = asyncio.get_running_loop()
        idle = [place for place in self._places.values() if not place.users]
        for number, place in enumerate(idle):
            if len(idle) - number > self._most or loop.time() - place.used_at >= self._seconds:
                # It stays known until it is closed: an index has one owner at a time.
                self._begin(place, OpenArchives.close)
        if idle and self._timer is None:
            self._timer = loop.call_later(self._seconds, self._look)

    def _look(self) -> None:
        self._timer = None
        self._tidy()
