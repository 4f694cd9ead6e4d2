"""Runs the method `respond` of a custom backend separately from the conversation, so that a request can be
abandoned.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import AsyncIterator, Callable, Iterator
from queue import SimpleQueue
from typing import Any, Final

from msgspec import Struct

from orch_protocol.core.errors import BackendError

from ...system.threads import in_thread, is_interrupt, transferable_error
from .contract import BackendRequest, CustomBackend, ResponseItem

__all__ = ["End", "ItemStream", "check_respond"]

LEAVE_SECONDS: Final = 2.0
"""Maximum time in seconds that an abandoned response may need to end."""
QUEUE_SIZE: Final = 64
"""Maximum number of items that wait in the queue. If the queue is full, the generator waits."""
ASYNC_RESULT: Final = "is a function that returns a coroutine or an async iterator: make it an async generator"


class End(Struct, frozen=True):
    """The end of a response. `error` is the exception that the generator raised, or None."""

    error: Exception | None = None


def check_respond(backend: type[CustomBackend]) -> str:
    """Return why the method `respond` of the class cannot be used, or ""."""
    respond = inspect.unwrap(backend.respond)
    if inspect.iscoroutinefunction(respond):
        return "has a `respond` without `yield`: make it an async generator"
    return ""


class ItemStream:
    """The response items from `backend` for `request`. Use the stream in one task, and call `close` at the end."""

    def __init__(self, backend: CustomBackend, request: BackendRequest) -> None:
        self._request = request
        self._items: asyncio.Queue[Any] = asyncio.Queue(QUEUE_SIZE)
        self.task = asyncio.get_running_loop().create_task(self._produce(backend))
        """The task that runs as long as the generator runs."""

    async def next(self) -> ResponseItem | End:
        """Return the next item, or `End` after the last item. Raise the exception that the generator raised."""
        item: ResponseItem | End = await self._items.get()
        if isinstance(item, End) and item.error is not None:
            raise item.error
        return item

    async def close(self) -> None:
        """Close the generator. Wait at most 2 s until the generator has ended."""
        self._request.cancelled.set()
        if not self.task.done():
            self.task.cancel()
            await asyncio.wait((self.task,), timeout=LEAVE_SECONDS)

    async def _produce(self, backend: CustomBackend) -> None:
        end = End()
        try:
            items = _start_iterator(backend, self._request)
            try:
                async for item in items:
                    await self._items.put(item)
            finally:
                await items.aclose()  # type: ignore[attr-defined]
        except asyncio.CancelledError as error:
            if self._request.cancelled.is_set():
                raise
            end = End(transferable_error(error))
        except BaseException as error:
            if is_interrupt(error):
                raise
            end = End(error if isinstance(error, Exception) else transferable_error(error))
        await self._items.put(end)


def _start_iterator(backend: CustomBackend, request: BackendRequest) -> AsyncIterator[ResponseItem]:
    if inspect.isasyncgenfunction(inspect.unwrap(backend.respond)):
        return backend.respond(request)  # type: ignore[return-value]
    return _ThreadIterator(lambda: backend.respond(request))  # type: ignore[arg-type, return-value]


class _ThreadIterator:
    """Runs an iterator in one thread, because some libraries keep state in thread-local variables."""

    def __init__(self, begin: Callable[[], Iterator[ResponseItem]]) -> None:
        self._begin = begin
        self._loop = asyncio.get_running_loop()
        self._requests: SimpleQueue[asyncio.Future[Any] | None] = SimpleQueue()
        self._thread = in_thread(self._run)

    def __aiter__(self) -> _ThreadIterator:
        return self

    async def __anext__(self) -> ResponseItem:
        request: asyncio.Future[Any] = self._loop.create_future()
        self._requests.put(request)
        item = await request
        if not isinstance(item, End):
            found: ResponseItem = item
            return found
        if item.error is not None:
            raise item.error
        raise StopAsyncIteration

    async def aclose(self) -> None:
        """Close the generator, and wait until the generator has ended."""
        self._requests.put(None)
        await asyncio.shield(self._thread)

    def _run(self) -> None:
        items: Iterator[ResponseItem] | None = None
        try:
            while (request := self._requests.get()) is not None:
                try:
                    items = self._iterator() if items is None else items
                    item: Any = next(items)
                except StopIteration:
                    item = End()
                except Exception as error:
                    item = End(error)
                except BaseException as error:
                    item = End(transferable_error(error))
                self._loop.call_soon_threadsafe(_settle, request, item)
        finally:
            if (close := getattr(items, "close", None)) is not None:
                close()

    def _iterator(self) -> Iterator[ResponseItem]:
        answer: Any = self._begin()
        if hasattr(answer, "__aiter__") or inspect.isawaitable(answer):
            raise BackendError(f"respond {ASYNC_RESULT}")
        if isinstance(answer, str) or not hasattr(answer, "__iter__"):
            raise BackendError(f"respond returned {answer!r:.80} instead of yielding items")
        return iter(answer)


def _settle(request: asyncio.Future[Any], item: Any) -> None:
    if not request.done():
        request.set_result(item)
