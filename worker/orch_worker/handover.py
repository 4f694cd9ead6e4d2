"""Going on at once with what somebody waits for, rather than in the next round of the event loop.

A round is a call to the kernel and a dozen of Python's own: a tenth of what a short question takes in all.
"""

from __future__ import annotations

import asyncio
from typing import TypeVar

__all__ = ["hand_over"]

T = TypeVar("T")


def hand_over(future: asyncio.Future[T], result: T) -> None:
    """Give `future`, which is not done, its result and let the tasks that await it go on before this returns.

    For the last act of a callback of the event loop: what these tasks do next happens in between. Within a task, where
    no other can go on, they do so in the next round as ever. What a done callback of another kind raises is raised
    here. Relied upon: `_callbacks`, without which it is the next round too.
    """
    waiting = getattr(future, "_callbacks", None) if asyncio.current_task() is None else None
    for callback, _ in waiting or ():
        future.remove_done_callback(callback)
    future.set_result(result)
    for callback, context in waiting or ():
        context.run(callback, future)
