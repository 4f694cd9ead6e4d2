"""Functions of the user's that run beside an event loop, in threads that keep nobody from leaving."""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import inspect
import threading
from collections.abc import Callable
from concurrent.futures import Executor, Future
from typing import Any, Final, ParamSpec, TypeVar

__all__ = ["ASIDE", "Aside", "awaited", "in_thread", "is_interrupt", "told"]

P = ParamSpec("P")
T = TypeVar("T")


class Aside(Executor):
    """Runs each call in a thread of its own: none waits until another one's returns, and none keeps anybody from
    leaving. Those of the event loop's own executor do both, and belong to the program."""

    def submit(self, fn: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> Future[T]:
        """Begin the call, and return its future."""
        future: Future[T] = Future()

        def run() -> None:
            try:
                result = fn(*args, **kwargs)
            except BaseException as error:
                future.set_exception(error)
            else:
                future.set_result(result)

        future.set_running_or_notify_cancel()
        threading.Thread(target=run, name="orch-aside", daemon=True).start()
        return future


ASIDE: Final = Aside()


def in_thread(act: Callable[[], Any]) -> asyncio.Future[tuple[Any, str]]:
    """Run `act` in a thread that keeps nobody from leaving, with the context variables that there are here; return what
    it returned, or what it raised as text."""
    loop = asyncio.get_running_loop()
    future: asyncio.Future[tuple[Any, str]] = loop.create_future()

    def settle(outcome: tuple[Any, str]) -> None:
        if not future.done():
            future.set_result(outcome)

    def run() -> None:
        try:
            outcome = act(), ""
        except BaseException as error:
            outcome = None, told(error)
        with contextlib.suppress(RuntimeError):  # the loop is closed: nobody waits any more
            loop.call_soon_threadsafe(settle, outcome)

    here = contextvars.copy_context()
    threading.Thread(target=here.run, args=(run,), name="orch-aside", daemon=True).start()
    return future


async def awaited(said: Any) -> tuple[Any, str]:
    """Return what `said` comes to, which may be awaitable, or what is raised as text: also when it leaves the program,
    or was cancelled from within, as by awaiting what somebody else has cancelled."""
    try:
        return (await said if inspect.isawaitable(said) else said), ""
    except asyncio.CancelledError as error:
        task = asyncio.current_task()
        if task is not None and task.cancelling():
            raise
        return None, told(error)
    except BaseException as error:
        if is_interrupt(error):
            raise
        return None, told(error)


def is_interrupt(error: BaseException) -> bool:
    """Tell whether `error` may be Ctrl-C: the main thread alone hears that, anywhere else a function raised it."""
    return isinstance(error, KeyboardInterrupt) and threading.current_thread() is threading.main_thread()


def told(error: BaseException) -> str:
    """Return what is said of `error`, whatever it says itself."""
    try:
        return f"{type(error).__name__}: {error}"
    except Exception:
        return type(error).__name__
