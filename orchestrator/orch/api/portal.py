"""The thread that runs the event loop of a blocking orchestrator, and methods that wait for asynchronous ones.

A blocking class names the asynchronous method of each of its methods:

    class Subagent(BlockingProxy[AsyncSubagent]):
        kill = blocking(AsyncSubagent.kill)

`kill` then has the signature, result type and docstring of the asynchronous method, without `await`.
"""

from __future__ import annotations

import asyncio
import os
import signal
import threading
from collections.abc import Callable, Coroutine
from concurrent.futures import Future
from functools import wraps
from inspect import signature
from typing import Any, Concatenate, Generic, ParamSpec, Protocol, TypeVar, cast, overload

from orch_protocol.core.errors import ConfigError

from ..config.interrupts import Presses

__all__ = ["BlockingMethod", "BlockingProxy", "Portal", "blocking", "blocking_as", "direct", "on_loop"]

A = TypeVar("A")
C = TypeVar("C", bound="BlockingProxy[Any]")
P = ParamSpec("P")
R = TypeVar("R")
R_co = TypeVar("R_co", covariant=True)
T = TypeVar("T")

GRACE_SECONDS = 1.0
END_SECONDS = 8.0


class Portal:
    """A thread that runs an event loop, for programs without one."""

    def __init__(self) -> None:
        self.loop = asyncio.new_event_loop()
        self.thread = threading.Thread(target=self._run, name="orch", daemon=True)
        self._pid = os.getpid()
        self._closed = False
        self._ending: Future[None] | None = None
        self._lock = threading.RLock()  # a signal handler may call `close` while this thread holds it
        self.thread.start()

    def start(self, work: Coroutine[Any, Any, T]) -> Future[T]:
        """Run `work` on the loop's thread. Cancelling the future cancels it. Raises ConfigError when closed."""
        if os.getpid() != self._pid:
            work.close()
            raise ConfigError(f"this orchestrator belongs to process {self._pid}; a forked child must make its own")
        with self._lock:
            if self._closed:
                work.close()
                raise ConfigError("this orchestrator is closed")
            return asyncio.run_coroutine_threadsafe(work, self.loop)

    def wait(self, work: Coroutine[Any, Any, T]) -> T:
        """Run `work` on the loop's thread and return its result. Ctrl-C stops waiting and cancels `work`."""
        try:
            self.forbid_own_thread()
        except ConfigError:
            work.close()
            raise
        future: Future[T] | None = None
        done = threading.Lock()
        done.acquire()
        try:
            with Presses(0) as presses:  # an interrupt before the future exists would leave its work running
                future = self.start(work)
                future.add_done_callback(lambda _: done.release())
            if presses.held:
                signal.raise_signal(signal.SIGINT)
            # Not `future.result()`: an interrupt while it takes the future's lock would leave the lock held, and the
            # loop would block on it.
            done.acquire()
            return future.result()
        except BaseException:
            if future is not None:
                future.cancel()
            raise

    def close(self, last: Callable[[], Coroutine[Any, Any, None]]) -> int:
        """Run `last`, cancel what is still running and stop the thread. Returns how often Ctrl-C was pressed meanwhile.

        Closing twice does nothing, and neither does closing in a forked child.
        """
        if os.getpid() != self._pid:
            return 0
        self.forbid_own_thread()
        with Presses(0) as presses:
            with self._lock:
                if self._closed:
                    return 0
                self._closed = True
                self._ending = ending = asyncio.run_coroutine_threadsafe(self._end(last), self.loop)
                ending.add_done_callback(lambda _: self.loop.call_soon_threadsafe(self.loop.stop))
            try:
                ending.result()
            finally:
                # If an interrupt cut this short, the thread finishes the work as long as the program runs.
                if ending.done():
                    self.thread.join()
                    self.loop.close()
        return presses.held

    @property
    def ended(self) -> bool:
        """Whether `close` has completed."""
        return self._ending is not None and self._ending.done()

    def forbid_own_thread(self) -> None:
        """Raise ConfigError on the loop's thread, which would wait for itself."""
        if self.on_own_thread:
            raise ConfigError(
                "a blocking call on the orchestrator's own thread would wait forever. Async tools, hooks, approvers, "
                "`on_event` and callbacks of futures run on that thread: make the tool a plain function, or start a "
                "thread for the call"
            )

    @property
    def on_own_thread(self) -> bool:
        """Whether the caller is on the loop's thread."""
        return threading.current_thread() is self.thread

    def _run(self) -> None:
        while not self.ended:
            try:
                self.loop.run_forever()
            except BaseException as error:
                # For example sys.exit in a callback of a future: without the loop every caller would wait forever.
                what = "orch: a function of the program's would have ended the orchestrator's thread"
                self.loop.call_exception_handler({"message": what, "exception": error})

    async def _end(self, last: Callable[[], Coroutine[Any, Any, None]]) -> None:
        try:
            await last()
        finally:
            # Callers in other threads get their results before the loop stops; what takes longer is cancelled.
            late = await _wait_for(asyncio.all_tasks() - {asyncio.current_task()}, GRACE_SECONDS)
            for task in late:
                if not task.cancelling():
                    task.cancel()
            await _wait_for(late, END_SECONDS)


class BlockingProxy(Generic[A]):
    """An object whose methods wait for those of an asynchronous one."""

    def __init__(self, portal: Portal, target: A) -> None:
        self._portal = portal
        self._async = target


class BlockingMethod(Protocol[P, R_co]):
    """A method with the parameters `P` and the result `R_co`."""

    @overload
    def __get__(self, instance: None, owner: type) -> Callable[Concatenate[Any, P], R_co]: ...
    @overload
    def __get__(self, instance: object, owner: type) -> Callable[P, R_co]: ...


def blocking(method: Callable[Concatenate[Any, P], Coroutine[Any, Any, R]]) -> BlockingMethod[P, R]:
    """Return the method of a BlockingProxy that waits for `method` of its target."""

    @wraps(method)
    def call(self: BlockingProxy[Any], *args: P.args, **kwargs: P.kwargs) -> R:
        return self._portal.wait(method(self._async, *args, **kwargs))

    return cast("BlockingMethod[P, R]", _renamed(call))


def blocking_as(
    proxy: Callable[[Portal, A], C], method: Callable[Concatenate[Any, P], Coroutine[Any, Any, A]]
) -> BlockingMethod[P, C]:
    """Like `blocking`, for a method whose result is itself an asynchronous object: wrap the result in `proxy`."""

    @wraps(method)
    def call(self: BlockingProxy[Any], *args: P.args, **kwargs: P.kwargs) -> C:
        return proxy(self._portal, self._portal.wait(method(self._async, *args, **kwargs)))

    shown = signature(method).replace(return_annotation=getattr(proxy, "__name__", ""))
    call.__signature__ = shown  # type: ignore[attr-defined]
    return cast("BlockingMethod[P, C]", _renamed(call))


def direct(method: Callable[Concatenate[Any, P], R]) -> BlockingMethod[P, R]:
    """Return the method of a BlockingProxy that calls the plain function `method` of its target, in any thread."""

    @wraps(method)
    def call(self: BlockingProxy[Any], *args: P.args, **kwargs: P.kwargs) -> R:
        return method(self._async, *args, **kwargs)

    return cast("BlockingMethod[P, R]", _renamed(call))


def on_loop(method: Callable[Concatenate[Any, P], R]) -> BlockingMethod[P, R]:
    """Like `direct`, but call `method` on the loop's thread."""

    @wraps(method)
    def call(self: BlockingProxy[Any], *args: P.args, **kwargs: P.kwargs) -> R:
        async def work() -> R:
            return method(self._async, *args, **kwargs)

        return self._portal.wait(work())

    return cast("BlockingMethod[P, R]", _renamed(call))


def _renamed(call: Callable[..., Any]) -> Any:
    """Name the method after the blocking class: `AsyncSubagent.kill` becomes `Subagent.kill`."""
    call.__qualname__ = call.__qualname__.removeprefix("Async")
    return call


async def _wait_for(tasks: set[asyncio.Task[Any]], seconds: float) -> set[asyncio.Task[Any]]:
    """Wait until `tasks` are done, at most `seconds`; return those that are not."""
    return (await asyncio.wait(tasks, timeout=seconds))[1] if tasks else set()
