"""Calling hooks, in whichever process their functions are: plain ones in a thread, async ones on the event loop."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from time import perf_counter
from typing import Any, Final

from msgspec.structs import replace

from orch_protocol.hooks.events import Event, ToolCall, ToolReturn

from ..system.threads import DeadlineExceeded, Task, ThreadPool
from .dispatch import HookCallResult
from .hook import Hook, HookContext

__all__ = ["STILL", "Calling", "await_hook", "copy_event", "in_thread", "task_of"]

STILL: Final = "is still at work on an earlier event"

Calling = tuple[Hook, Event, HookContext]
"""A hook, and what it is called with."""


async def in_thread(threads: ThreadPool, callings: Sequence[Calling]) -> list[HookCallResult]:
    """Return what plain hooks say, called in order in one thread. One whose earlier call hangs is late at once."""
    late = frozenset(threads.overdue)
    called = [calling for calling in callings if calling[0].row.name not in late]
    tasks = [task_of(hook, context) for hook, _, context in called]
    ran = await threads.run_all(tasks, [copy_event(event) for _, event, _ in called])
    came = (HookCallResult(*ran.said.get(place, (None, None)), seconds) for place, seconds in enumerate(ran.seconds))
    return [
        HookCallResult(error=DeadlineExceeded(STILL)) if hook.row.name in late else next(came)
        for hook, _, _ in callings
    ]


def task_of(hook: Hook, context: HookContext) -> Task:
    """Return the call of a plain hook in a thread; its first argument is an event."""
    return hook.row.name, hook.row.seconds, hook.handler, context


def copy_event(event: Event) -> Event:
    """Return `event` for one hook alone: whatever that does to it in place, nobody else is given."""
    if isinstance(event, (ToolCall, ToolReturn)):
        return replace(event, input=_copied(event.input))
    return event


async def await_hook(hook: Hook, event: Event, context: HookContext) -> HookCallResult:
    """Return what an async hook says, Late at its deadline; one that ignores that is left behind."""
    began = perf_counter()
    task: asyncio.Task[Any] = asyncio.create_task(_leaving(hook, copy_event(event), context))
    try:
        done, _ = await asyncio.wait({task}, timeout=hook.row.seconds)
    except asyncio.CancelledError:
        task.cancel()
        raise
    seconds = perf_counter() - began
    if not done:
        task.cancel()
        task.add_done_callback(_retrieve)
        return HookCallResult(error=DeadlineExceeded(f"did not answer within {hook.row.seconds:g} s"), seconds=seconds)
    if task.cancelled():
        return HookCallResult(error=RuntimeError("cancelled itself"), seconds=seconds)
    error = task.exception()
    return (
        HookCallResult(None, error, seconds)
        if isinstance(error, Exception)
        else HookCallResult(task.result(), None, seconds)
    )


def _copied(data: Any) -> Any:
    """Return a copy of JSON data; a fifth of what `deepcopy` takes."""
    if isinstance(data, dict):
        return {key: _copied(value) for key, value in data.items()}
    return [_copied(value) for value in data] if isinstance(data, list) else data


async def _leaving(hook: Hook, event: Event, context: HookContext) -> Any:
    try:
        return await hook.handler(event, context)
    except (asyncio.CancelledError, GeneratorExit):
        raise
    except BaseException as error:
        if isinstance(error, Exception) and not isinstance(error, StopIteration):
            raise
        raise RuntimeError(f"{type(error).__name__}: {error}") from error


def _retrieve(task: asyncio.Task[Any]) -> None:
    if not task.cancelled():
        task.exception()
