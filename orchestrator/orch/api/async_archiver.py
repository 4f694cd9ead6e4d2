"""An Archiver for loops that run in an event loop."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Callable, Collection, Sequence
from functools import partial
from inspect import iscoroutinefunction
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar

from orch_protocol.agent.config import ArchivalConfig, Profile
from orch_protocol.core.errors import ConfigError, StoreError
from orch_protocol.core.messages import StopReason
from orch_protocol.services.archives.archiving import SummaryRequest
from orch_protocol.services.archives.recall import SearchHit
from orch_worker.backends.prices import Prices
from orch_worker.conversation.live_subagents import LiveSubagent
from orch_worker.conversation.tokens import TokenEstimator
from orch_worker.system.threads import DAEMON_THREADS

from ..archival.fold import ArchivedRange
from ..archival.store.catalog import ArchiveRecord
from .archiver import Archiver

if TYPE_CHECKING:
    from .orchestrator import AsyncOrchestrator

__all__ = ["AsyncArchiver"]

P = ParamSpec("P")
T = TypeVar("T")


class AsyncArchiver:
    """An `Archiver` whose methods do not block the event loop.

        async with AsyncArchiver("archive", format) as archiver:
            messages = await archiver.fold(messages)

    The arguments and methods are those of `Archiver`. `summarize` may be an async function, and `orchestrator` is an
    AsyncOrchestrator. The methods run in threads, one at a time; tasks may call them at the same time. If a caller is
    canceled, the method continues, and the next call waits for its end. `async with` or `start` opens the folder, and
    raises the errors of `Archiver`.
    """

    def __init__(
        self,
        folder: str | os.PathLike[str],
        format: str,
        profile: Profile | None = None,
        summarize: Callable[[SummaryRequest], str | Awaitable[str]] | None = None,
        *,
        config: ArchivalConfig | None = None,
        prices: Prices | None = None,
        beside: int = 0,
        estimator: TokenEstimator | None = None,
        orchestrator: AsyncOrchestrator | None = None,
    ) -> None:
        if orchestrator is not None and not iscoroutinefunction(getattr(orchestrator, "spawn", None)):
            raise ConfigError("orchestrator must be an AsyncOrchestrator; pass an Orchestrator to `Archiver`")
        self._open = partial(
            Archiver, folder, format, profile, config=config, prices=prices, beside=beside, estimator=estimator
        )
        self._summarize = summarize
        self._caller_root = self._root = orchestrator
        self._archiver: Archiver | None = None
        self._lock = asyncio.Lock()
        self._running: set[asyncio.Task[Any]] = set()

    async def __aenter__(self) -> AsyncArchiver:
        return await self.start()

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def start(self) -> AsyncArchiver:
        """Open the folder. See `Archiver` for the errors."""
        await self._in_thread(self._open_once, self._blocking_summarize())
        return self

    async def close(self) -> None:
        """Store the summaries that have arrived, and close the files. Closing twice does nothing."""
        root, self._root = self._root, self._caller_root
        if root is not None and root is not self._caller_root:
            await root.close()
        if self._archiver is not None:
            await self._in_thread(self._archiver.close)

    @property
    def archiver(self) -> Archiver:
        """The blocking Archiver, for `config`, `rules`, `notes` and `folded`. Raises StoreError before `start`."""
        if self._archiver is None:
            raise StoreError("the AsyncArchiver is not open: use `async with AsyncArchiver(...)`, or await `start()`")
        return self._archiver

    @property
    def folded(self) -> tuple[ArchivedRange, ...]:
        """The ranges archived by the last `fold`, in order."""
        return self.archiver.folded

    @property
    def notes(self) -> list[str]:
        """Damaged parts of the folder, and summaries that could not be created, one line each."""
        return self.archiver.notes

    def tools(self) -> list[Any]:
        """Return the definitions of the tools search_archive and read_archive in this message format."""
        return self.archiver.tools()

    async def fold(self, messages: Sequence[Any], *, stop_reason: StopReason | None = None) -> list[Any]:
        """Archive the turns that the profile does not keep, and return the remaining messages. See `Archiver.fold`."""
        return await self._in_thread(self.archiver.fold, messages, stop_reason=stop_reason)

    async def show(self, messages: Sequence[Any]) -> None:
        """See `Archiver.show`."""
        return await self._in_thread(self.archiver.show, messages)

    async def unfold(self, messages: Sequence[Any]) -> list[Any]:
        """Return `messages` with all archived messages restored in place."""
        return await self._in_thread(self.archiver.unfold, messages)

    async def request(self, messages: Sequence[Any], *, recall: bool = True, cache_markers: bool = True) -> list[Any]:
        """Return `messages` as a request with the list of archived turns. See `Archiver.request`."""
        return await self._in_thread(self.archiver.request, messages, recall=recall, cache_markers=cache_markers)

    async def block(self, messages: Sequence[Any]) -> str:
        """Return the list of archived turns for `messages`. Return "" if `messages` refer to no archives."""
        return await self._in_thread(self.archiver.block, messages)

    async def live(self, messages: Sequence[Any]) -> list[LiveSubagent]:
        """Return the archives that the records in `messages` refer to, in order."""
        return await self._in_thread(self.archiver.live, messages)

    async def explain(self) -> str:
        """Return what the last `fold` archived, why the rest stays in the conversation, and what would change that."""
        return await self._in_thread(self.archiver.explain)

    async def observe(self, messages: Sequence[Any], input_tokens: int) -> None:
        """Calibrate the token estimates with the token count that the provider reported for a request."""
        await self._in_thread(self.archiver.observe, messages, input_tokens)

    async def archives(self, *, merged: bool = False) -> list[ArchiveRecord]:
        """Return the archives that the conversation of the last `fold` shows. See `Archiver.archives`."""
        return await self._in_thread(self.archiver.archives, merged=merged)

    async def search(self, query: str, limit: int = 10, *, among: Collection[str] | None = None) -> list[SearchHit]:
        """Return up to `limit` passages of archives, best match first. See `Archiver.search`."""
        return await self._in_thread(partial(self.archiver.search, query, limit, among=among))

    async def read_archive(
        self, id: str, first: int = 1, last: int | None = None, *, among: Collection[str] | None = None
    ) -> list[Any]:
        """Return messages `first` to `last` of an archive, unchanged. See `Archiver.read_archive`."""
        return await self._in_thread(partial(self.archiver.read_archive, id, first, last, among=among))

    async def delete(self, *ids: str) -> list[ArchiveRecord]:
        """Permanently delete the content of archives. See `Archiver.delete`."""
        return await self._in_thread(self.archiver.delete, *ids)

    async def call(self, name: str, input: dict[str, Any], *, among: Collection[str] | None = None) -> str:
        """Return the result of a tool call as text of limited size. See `Archiver.call`."""
        return await self._in_thread(partial(self.archiver.call, name, input, among=among))

    async def query(self, id: str, question: str) -> str:
        """Return a model's answer to `question` about the archive `id`. See `Archiver.query`."""
        asked = await self._in_thread(self.archiver.queries.question, id, question)
        if self._root is None:
            from .orchestrator import AsyncOrchestrator  # imported here because only questions need processes

            self._root = AsyncOrchestrator()
        await self._root.start()
        agent = await self._root.spawn(asked.task, preset="holder", history=asked.history, persist=asked.persist)
        try:
            reply = await agent.query(asked.prompt)
            return reply.text
        finally:
            await agent.kill()
            if asked.persist:
                await self._root.sessions.forget(agent.id)

    def _open_once(self, summarize: Callable[[SummaryRequest], str] | None) -> None:
        if self._archiver is None:
            self._archiver = self._open(summarize)

    async def _in_thread(self, act: Callable[P, T], *arguments: P.args, **named: P.kwargs) -> T:
        """Return the result of `act`, which runs in a thread after all earlier calls."""
        task = asyncio.create_task(self._run(partial(act, *arguments, **named)))
        self._running.add(task)
        task.add_done_callback(self._finished)
        return await asyncio.shield(task)

    def _finished(self, task: asyncio.Task[Any]) -> None:
        self._running.discard(task)
        if not task.cancelled():
            task.exception()  # a waiting caller gets the exception; this line keeps asyncio from logging it too

    async def _run(self, act: Callable[[], T]) -> T:
        async with self._lock:
            return await asyncio.get_running_loop().run_in_executor(DAEMON_THREADS, act)

    def _blocking_summarize(self) -> Callable[[SummaryRequest], str] | None:
        summarize, loop = self._summarize, asyncio.get_running_loop()
        if not iscoroutinefunction(summarize):
            return summarize  # type: ignore[return-value]

        def blocking(request: SummaryRequest) -> str:
            text: str = asyncio.run_coroutine_threadsafe(summarize(request), loop).result()
            return text

        return blocking
