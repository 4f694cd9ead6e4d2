"""One task for many turns: it goes on at once with what it waits for, and takes each turn in a context of its own.

A round of the event loop is a call to the kernel and a dozen of Python's own: a tenth of what a short question takes in
all. A task for each turn would take one more.
"""

from __future__ import annotations

import asyncio
import asyncio.futures
from collections.abc import Callable, Coroutine, Generator
from contextvars import copy_context
from types import coroutine
from typing import Any, Final, TypeVar

__all__ = ["apart", "hand_over"]

T = TypeVar("T")

IN_PYTHON: Final[type] = getattr(asyncio.futures, "_PyFuture", object)


def hand_over(future: asyncio.Future[T], result: T) -> None:
    """Give `future`, which is not done, its result and let the tasks that await it go on before this returns.

    For the last act of a callback of the event loop: what these tasks do next happens in between. Within a task, where
    no other can go on, they do so in the next round as ever. What one of them raises that ends the event loop, or a
    done callback of another kind, is raised here; those behind it go on in the next round. Relied upon: `_callbacks` of
    the interpreter's own futures. With Python's, which those use whose event loop is to run within itself, it is the
    next round too: no callback of theirs may be under way for long.
    """
    waiting = None
    if asyncio.current_task() is None and not isinstance(future, IN_PYTHON):
        waiting = getattr(future, "_callbacks", None)
    for callback, _ in waiting or ():
        future.remove_done_callback(callback)
    future.set_result(result)
    rest = iter(waiting or ())
    try:
        for callback, context in rest:
            context.run(callback, future)
    finally:
        for callback, context in rest:
            future.get_loop().call_soon(callback, future, context=context)


@coroutine
def apart(work: Coroutine[Any, Any, T]) -> Generator[Any, Any, T]:
    """Await `work` as part of this task, but in a copy of its context: what it sets there is gone with it."""
    context, given = copy_context(), None
    go_on: Callable[[Any], Any] = work.send
    while True:
        try:
            awaited = context.run(go_on, given)
        except StopIteration as done:
            result: T = done.value
            return result
        finally:
            given = None  # what is raised refers to this frame
        try:
            go_on, given = work.send, (yield awaited)
        except BaseException as error:
            go_on, given = work.throw, error
