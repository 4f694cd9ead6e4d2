"""A thread that runs the event loop of a blocking orchestrator, and blocking versions of asynchronous methods.

A blocking class names the asynchronous method of each of its methods:

    class Subagent(BlockingProxy[AsyncSubagent]):
        kill = blocking(AsyncSubagent.kill)

`kill` then has the signature, result type and docstring of the asynchronous method, without `await`. The method is
built when it is used first. Until then AsyncSubagent may be an ImportedLater, because the asynchronous classes import
the whole root.
"""

from __future__ import annotations

import asyncio
import os
import signal
import threading
from collections.abc import Callable, Coroutine
from concurrent.futures import Future
from functools import wraps
from importlib import import_module
from inspect import signature
from typing import Any, Concatenate, Generic, NamedTuple, ParamSpec, Protocol, TypeVar, cast, overload

from orch_protocol.core.errors import ConfigError, OrchError

from ..config.interrupts import InterruptLimit

__all__ = ["BlockingMethod", "BlockingProxy", "ImportedLater", "Portal", "blocking", "blocking_as", "direct", "on_loop"]

A = TypeVar("A")
C = TypeVar("C", bound="BlockingProxy[Any]")
P = ParamSpec("P")
R = TypeVar("R")
R_co = TypeVar("R_co", covariant=True)
T = TypeVar("T")

GRACE_SECONDS = 1.0
END_SECONDS = 8.0


class Portal:
    """A thread with an event loop, for programs that have no event loop."""

    def __init__(self) -> None:
        self.loop = asyncio.new_event_loop()
        self.thread = threading.Thread(target=self._run, name="orch", daemon=True)
        self._pid = os.getpid()
        self._closed = False
        self._ending: Future[None] | None = None
        self._lock = threading.RLock()  # reentrant: a signal handler may call `close` while the lock is held
        self.thread.start()

    def start(self, work: Coroutine[Any, Any, T]) -> Future[T]:
        """Run `work` on the loop's thread.

        Cancelling the future cancels `work`. Raises ConfigError if the portal is closed.
        """
        if os.getpid() != self._pid:
            work.close()
            raise ConfigError(f"this orchestrator belongs to process {self._pid}; a forked child must make its own")
        with self._lock:
            if self._closed:
                work.close()
                raise ConfigError("this orchestrator is closed")
            return asyncio.run_coroutine_threadsafe(work, self.loop)

    def wait(self, work: Coroutine[Any, Any, T]) -> T:
        """Run `work` on the loop's thread and return its result. Ctrl-C stops the wait and cancels `work`.

        The traceback of an OrchError begins here: its message says what the program did wrong, and the frames of the
        root do not.
        """
        try:
            self.forbid_own_thread()
        except ConfigError:
            work.close()
            raise
        future: Future[T] | None = None
        finished = threading.Lock()
        finished.acquire()
        try:
            with InterruptLimit(0) as interrupts:  # an interrupt before the future exists would leave `work` running
                future = self.start(work)
                future.add_done_callback(lambda _: finished.release())
            if interrupts.suppressed:
                signal.raise_signal(signal.SIGINT)
            # `future.result()` would be wrong here: if an interrupt arrives while this call takes the future's lock,
            # the lock stays held and the loop blocks on that lock.
            finished.acquire()
            error = future.exception()
            if isinstance(error, OrchError):
                raise error.with_traceback(None)
            return future.result()
        except BaseException:
            if future is not None:
                future.cancel()
            raise

    def close(self, shutdown: Callable[[], Coroutine[Any, Any, None]]) -> int:
        """Run the function `shutdown`, cancel remaining tasks and stop the thread.

        Return how often Ctrl-C was pressed while closing. A second call does nothing. A call in a forked child does
        nothing.
        """
        if os.getpid() != self._pid:
            return 0
        self.forbid_own_thread()
        with InterruptLimit(0) as interrupts:
            with self._lock:
                if self._closed:
                    return 0
                self._closed = True
                self._ending = ending = asyncio.run_coroutine_threadsafe(self._end(shutdown), self.loop)
                ending.add_done_callback(lambda _: self.loop.call_soon_threadsafe(self.loop.stop))
            try:
                ending.result()
            finally:
                # If an interrupt ended the wait, the loop's thread finishes the work while the program continues to
                # run.
                if ending.done():
                    self.thread.join()
                    self.loop.close()
        return interrupts.suppressed

    @property
    def ended(self) -> bool:
        """Whether `close` has completed."""
        return self._ending is not None and self._ending.done()

    def forbid_own_thread(self) -> None:
        """Raise ConfigError if the caller is on the loop's thread, because that thread would wait for itself."""
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
                # For example, a callback of a future called sys.exit. Without the loop every caller would wait forever.
                message = "orch: a function of the program tried to end the orchestrator's thread"
                self.loop.call_exception_handler({"message": message, "exception": error})

    async def _end(self, shutdown: Callable[[], Coroutine[Any, Any, None]]) -> None:
        try:
            await shutdown()
        finally:
            # Callers in other threads get their results before the loop stops. Tasks that take too long are cancelled.
            unfinished = await _wait_for(asyncio.all_tasks() - {asyncio.current_task()}, GRACE_SECONDS)
            for task in unfinished:
                if not task.cancelling():
                    task.cancel()
            await _wait_for(unfinished, END_SECONDS)


class BlockingProxy(Generic[A]):
    """A blocking wrapper of an asynchronous object. Each method waits for a method of that object."""

    def __init__(self, portal: Portal, target: A) -> None:
        self._portal = portal
        self._async = target


class BlockingMethod(Protocol[P, R_co]):
    """A method with the parameters `P` and the result `R_co`."""

    @overload
    def __get__(self, instance: None, owner: type) -> Callable[Concatenate[Any, P], R_co]: ...
    @overload
    def __get__(self, instance: object, owner: type) -> Callable[P, R_co]: ...


class ImportedLater:
    """The class `name` of the module `module`, which is not imported yet. Its attributes stand for methods."""

    def __init__(self, module: str, name: str) -> None:
        self._module, self._name = module, name

    def __getattr__(self, attribute: str) -> _MethodOfLaterClass:
        return _MethodOfLaterClass(self._module, self._name, attribute)


class _MethodOfLaterClass(NamedTuple):
    """A method of an ImportedLater."""

    module: str
    class_name: str
    name: str

    def load(self) -> Callable[..., Any]:
        """Import the class and return its method."""
        method: Callable[..., Any] = getattr(getattr(import_module(self.module), self.class_name), self.name)
        return method


class _BuiltLater:
    """A method of a blocking class. When the method is used first, `build(method)` replaces this object."""

    def __init__(self, method: Any, build: Callable[[Any], Any]) -> None:
        self._method, self._build = method, build

    def __set_name__(self, owner: type, name: str) -> None:
        self._owner, self._name = owner, name

    def __get__(self, instance: object, owner: type | None = None) -> Any:
        method = self._method.load() if isinstance(self._method, _MethodOfLaterClass) else self._method
        call = self._build(method)
        call.__qualname__ = call.__qualname__.removeprefix("Async")  # AsyncSubagent.kill becomes Subagent.kill
        setattr(self._owner, self._name, call)
        return call.__get__(instance, owner)


def blocking(method: Callable[Concatenate[Any, P], Coroutine[Any, Any, R]]) -> BlockingMethod[P, R]:
    """Return the method of a BlockingProxy that waits for `method` of its target."""

    def build(method: Callable[..., Coroutine[Any, Any, R]]) -> Callable[..., R]:
        @wraps(method)
        def call(self: BlockingProxy[Any], *args: Any, **kwargs: Any) -> R:
            return self._portal.wait(method(self._async, *args, **kwargs))

        return call

    return cast("BlockingMethod[P, R]", _BuiltLater(method, build))


def blocking_as(
    proxy: Callable[[Portal, A], C], method: Callable[Concatenate[Any, P], Coroutine[Any, Any, A]]
) -> BlockingMethod[P, C]:
    """Like `blocking`, for a `method` that returns an asynchronous object. The result is wrapped in `proxy`."""

    def build(method: Callable[..., Coroutine[Any, Any, A]]) -> Callable[..., C]:
        @wraps(method)
        def call(self: BlockingProxy[Any], *args: Any, **kwargs: Any) -> C:
            return proxy(self._portal, self._portal.wait(method(self._async, *args, **kwargs)))

        new_signature = signature(method).replace(return_annotation=getattr(proxy, "__name__", ""))
        call.__signature__ = new_signature  # type: ignore[attr-defined]
        return call

    return cast("BlockingMethod[P, C]", _BuiltLater(method, build))


def direct(method: Callable[Concatenate[Any, P], R]) -> BlockingMethod[P, R]:
    """Return the method of a BlockingProxy that calls the plain function `method` of its target.

    The function runs in the thread of the caller.
    """

    def build(method: Callable[..., R]) -> Callable[..., R]:
        @wraps(method)
        def call(self: BlockingProxy[Any], *args: Any, **kwargs: Any) -> R:
            return method(self._async, *args, **kwargs)

        return call

    return cast("BlockingMethod[P, R]", _BuiltLater(method, build))


def on_loop(method: Callable[Concatenate[Any, P], R]) -> BlockingMethod[P, R]:
    """Like `direct`, but `method` is called on the loop's thread."""

    def build(method: Callable[..., R]) -> Callable[..., R]:
        @wraps(method)
        def call(self: BlockingProxy[Any], *args: Any, **kwargs: Any) -> R:
            async def work() -> R:
                return method(self._async, *args, **kwargs)

            return self._portal.wait(work())

        return call

    return cast("BlockingMethod[P, R]", _BuiltLater(method, build))


async def _wait_for(tasks: set[asyncio.Task[Any]], seconds: float) -> set[asyncio.Task[Any]]:
    """Wait at most `seconds` until `tasks` are done. Return the unfinished tasks."""
    return (await asyncio.wait(tasks, timeout=seconds))[1] if tasks else set()
