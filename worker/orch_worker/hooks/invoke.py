"""Calls the functions of hooks with a time limit: sync functions in a thread, async functions on the event loop."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterable, Sequence
from time import perf_counter
from typing import Any, Final

from msgspec.structs import replace

from orch_protocol.hooks.events import Event, ToolCall, ToolReturn

from ..system.threads import DeadlineExceeded, Task, ThreadPool, run_coroutine
from .dispatch import HookCallResult
from .hook import Hook, HookContext, call_async

__all__ = ["STILL_RUNNING", "HookInvoker", "PreparedCall", "copy_event", "task_of"]

STILL_RUNNING: Final = "is still at work on an earlier event"

PreparedCall = tuple[Hook, Event, HookContext]
"""A hook and its arguments."""


class HookInvoker:
    """Calls hooks, and runs async observing hooks in the background. Agents and the root use this class."""

    def __init__(self) -> None:
        self._threads = ThreadPool()
        self._background: set[asyncio.Task[None]] = set()

    @property
    def overdue(self) -> Iterable[str]:
        """Names of the sync hooks that exceeded their timeout and still occupy a thread."""
        return self._threads.overdue

    async def call(self, calls: Sequence[PreparedCall]) -> list[HookCallResult]:
        """Call hooks and return their results.

        The sync hooks are called first, in order and in one thread, then the async hooks.

        A sync hook that has not finished an earlier call is not called again. The result of this hook is a
        DeadlineExceeded error.
        """
        sync_calls = [call for call in calls if not call[0].row.aside]
        thread_results = iter(await self._call_in_thread(sync_calls)) if sync_calls else iter(())
        return [await _await_hook(*call) if call[0].row.aside else next(thread_results) for call in calls]

    def watch(self, call: PreparedCall, on_result: Callable[[Hook, Event, HookCallResult], None]) -> None:
        """Call an async hook in the background, and pass its result to `on_result`."""

        async def watch() -> None:
            on_result(call[0], call[1], await _await_hook(*call))

        self.start(watch())

    def start(self, work: Coroutine[Any, Any, None]) -> None:
        """Run `work` in the background until `close`."""
        task = asyncio.create_task(work)
        self._background.add(task)
        task.add_done_callback(self._background.discard)

    def close(self) -> None:
        """Cancel the background tasks, and end the idle threads."""
        for task in self._background:
            task.cancel()
        self._threads.close()

    async def _call_in_thread(self, calls: Sequence[PreparedCall]) -> list[HookCallResult]:
        overdue = frozenset(self._threads.overdue)
        allowed_calls = [call for call in calls if call[0].row.name not in overdue]
        tasks = [task_of(hook, context) for hook, _, context in allowed_calls]
        thread_run = await self._threads.run_all(tasks, [copy_event(event) for _, event, _ in allowed_calls])
        results = (
            HookCallResult(*thread_run.results.get(index, (None, None)), seconds)
            for index, seconds in enumerate(thread_run.seconds)
        )
        return [
            HookCallResult(error=DeadlineExceeded(STILL_RUNNING)) if hook.row.name in overdue else next(results)
            for hook, _, _ in calls
        ]


def task_of(hook: Hook, context: HookContext) -> Task:
    """Return the task for a thread that calls a sync hook. The argument of the task is the event."""
    return hook.row.name, hook.row.seconds, hook.handler, context


def copy_event(event: Event) -> Event:
    """Return a copy of `event` for one hook, so that changes in place do not reach other hooks."""
    if isinstance(event, (ToolCall, ToolReturn)):
        return replace(event, input=_copy_json(event.input))
    return event


async def _await_hook(hook: Hook, event: Event, context: HookContext) -> HookCallResult:
    began = perf_counter()
    try:
        value = await run_coroutine(call_async(hook.handler, copy_event(event), context), hook.row.seconds)
    except Exception as error:
        return HookCallResult(None, error, perf_counter() - began)
    return HookCallResult(value, None, perf_counter() - began)


def _copy_json(data: Any) -> Any:
    """Return a copy of JSON data. This function needs a fifth of the time of `deepcopy`."""
    if isinstance(data, dict):
        return {key: _copy_json(value) for key, value in data.items()}
    return [_copy_json(value) for value in data] if isinstance(data, list) else data
