"""Runs sync observing hooks in one thread, in order. The agent does not wait for observing hooks after each event."""

from __future__ import annotations

import asyncio
import contextlib
import os
import threading
from collections import deque
from collections.abc import Awaitable, Callable, Iterator, Sequence
from operator import add, sub
from time import perf_counter
from typing import Any, Final, Generic, NamedTuple, TypeVar

from orch_protocol.hooks.events import Event, ToolCall, ToolReturn

from ..system.threads import DeadlineExceeded, OverdueTasks, Task, TaskBatch, transferable_error
from .invoke import STILL_RUNNING, copy_event

__all__ = ["NotificationQueue", "ObserverGroup", "ObserverReport", "ObserverThreads"]


BLOCKING_SECONDS: Final = 0.001
"""Maximum time in seconds that `wait_until_delivered` blocks the event loop before other tasks run."""
MAX_WAKES: Final = 1 << 16


class ObserverReport(NamedTuple):
    """The result of calling the hook `name` with `event`.

    `seconds` is the duration of the call, or None if the group has already counted the call. In that case, there is a
    report only if the hook returned a value or failed.
    """

    name: str
    event: Event
    value: Any
    error: Exception | None
    seconds: float | None = None


class ObserverGroup:
    """Hooks that are called together, in order, with one event. The group counts their calls and durations.

    Only the observer thread changes `_total`, which contains the number of calls of the group and the total seconds of
    each hook.
    """

    def __init__(self, tasks: Sequence[Task]) -> None:
        self.tasks = tuple(tasks)
        self.calls = [(function, second) for _, _, function, second in tasks]
        self.shortest_timeout = min((seconds for _, seconds, _, _ in tasks), default=0.0)
        self._total: tuple[int, list[float]] = (0, [0.0] * len(tasks))
        self._reported_total = self._total

    def count(self, began: float, end_times: Sequence[float]) -> None:
        """Count a call of the whole group, which started at `began`. `end_times` contains the end time of each hook."""
        calls, seconds = self._total
        self._total = (calls + 1, list(map(add, seconds, map(sub, end_times, (began, *end_times)))))

    def take(self) -> Iterator[tuple[str, int, float]]:
        """Yield the name, number of calls and total seconds of each hook since the previous call of `take`."""
        (calls_before, seconds_before), (calls, seconds) = self._reported_total, self._total
        self._reported_total = (calls, seconds)
        if calls > calls_before:
            for (name, *_), old, new in zip(self.tasks, seconds_before, seconds, strict=True):
                yield name, calls - calls_before, new - old


class ObserverThreads:
    """Calls observing hooks in one thread, in the order of events. Only `wait_until_delivered` waits for the hooks.

    A hook that exceeds its timeout is abandoned together with its thread, and a new thread continues. `overdue` counts
    the hook until it returns. `on_report` receives the reports on the thread of the event loop.
    """

    def __init__(self, on_report: Callable[[ObserverReport], None]) -> None:
        self.overdue = OverdueTasks()
        self._on_report = on_report
        self._loop = asyncio.get_running_loop()
        self._queue: deque[tuple[ObserverGroup, Event]] = deque()
        self._thread: _ObserverThread | None = None
        self._wake_reader = self._wake_writer = -1
        """A pipe that wakes the thread.

        Writing to a pipe releases the GIL, so the writer does not wait for the woken thread.
        """
        self._pipe_closed = self._closed = False
        self._added_count = self._done_count = 0
        self._reports: deque[ObserverReport] = deque()
        self._done_lock = threading.Lock()
        self._done_lock.acquire()
        self._awaited_count = -1
        """The number of finished events at which the thread releases `_done_lock`."""
        self._waiters: list[asyncio.Future[None]] = []
        self._timer: asyncio.TimerHandle | None = None
        self._shortest_timeout = 0.0

    def add(self, group: ObserverGroup, event: Event) -> None:
        """Queue `event` for the hooks of `group`. After `close`, this method does nothing."""
        if self._closed:
            return  # The descriptor of the closed pipe may now belong to another file.
        self._added_count += 1
        self._queue.append((group, event))
        if self._thread is None:
            self._wake_reader, self._wake_writer = os.pipe()
            os.set_blocking(self._wake_writer, False)
            self._thread = _ObserverThread(self)
        # The pipe is full: the thread is already awake, or a hook blocks the thread.
        with contextlib.suppress(BlockingIOError):
            os.write(self._wake_writer, b"\0")
        if self._timer is None:
            self._shortest_timeout = group.shortest_timeout
            self._timer = self._loop.call_later(group.shortest_timeout, self._check_timeout)
        elif group.shortest_timeout < self._shortest_timeout:
            self._shortest_timeout = group.shortest_timeout
            self._schedule_check(group.shortest_timeout)

    @property
    def idle(self) -> bool:
        """Whether all queued events were delivered."""
        return self._done_count >= self._added_count

    async def wait_until_delivered(self) -> None:
        """Wait until all events queued so far are delivered."""
        target = self._added_count
        if self._done_count < target:
            self._awaited_count = target
            deadline = perf_counter() + BLOCKING_SECONDS
            while self._done_count < target and (remaining := deadline - perf_counter()) > 0:
                self._done_lock.acquire(timeout=remaining)
            self._awaited_count = -1
        while self._done_count < target:
            waiter: asyncio.Future[None] = self._loop.create_future()
            self._waiters.append(waiter)
            if self._done_count < target:
                await waiter

    def collect(self) -> None:
        """Pass the reports so far to `on_report`."""
        while self._reports:
            self._on_report(self._reports.popleft())

    def close(self) -> None:
        """End the thread after all queued events are delivered. Calling this method twice is allowed."""
        if self._timer is not None:
            self._timer.cancel()
        if self._thread is not None and not self._closed:
            os.close(self._wake_writer)
        self._closed = True

    # The following methods run on the thread of the event loop.

    def _on_wake(self) -> None:
        try:
            self.collect()
        finally:
            waiters, self._waiters = self._waiters, []
            for waiter in waiters:
                if not waiter.done():
                    waiter.set_result(None)

    def _schedule_check(self, seconds: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = self._loop.call_later(seconds, self._check_timeout)

    def _check_timeout(self) -> None:
        """Abandon a hook that has exceeded its timeout, and schedule the next check."""
        self._timer = None
        if self._done_count >= self._added_count or self._thread is None:
            return
        notification = self._thread.notification
        remaining = notification.remaining_seconds() if notification is not None else self._shortest_timeout
        if remaining <= 0 and notification is not None:
            self._abandon(notification)
            remaining = self._shortest_timeout
        self._schedule_check(min(remaining, self._shortest_timeout))

    def _abandon(self, notification: _Notification) -> None:
        if next(notification.end_token, None) is None:
            return  # The round has just ended.
        notification.abandon()
        reports = notification.reports(complete=False)
        self._reports.extend(reports)
        if notification.hanging_task:
            name, seconds, _, _ = notification.tasks[notification.first + len(reports)]
            self.overdue[name] += 1
            self._reports.append(ObserverReport(name, notification.event, None, notification.timeout_error(), seconds))
        self._thread = _ObserverThread(self, _Notification(notification.group, notification.event, notification.stop))
        self.collect()

    def _on_late_return(self, notification: _Notification) -> None:
        if notification.hanging_task:
            self.overdue.returned(notification.hanging_task)

    # The following method runs on the observer thread.

    def serve(self, thread: _ObserverThread, notification: _Notification | None) -> None:
        """Deliver the rest of `notification`, and then queued events.

        Return when `thread` is abandoned or the queue is closed.
        """
        while True:
            if notification is None:
                while not self._queue:
                    if self._pipe_closed:
                        os.close(self._wake_reader)
                        return
                    self._pipe_closed = not os.read(self._wake_reader, MAX_WAKES)
                notification = _Notification(*self._queue.popleft())
            thread.notification = notification
            complete = notification.run_tasks(frozenset(self.overdue))
            if next(notification.end_token, None) is None:
                with contextlib.suppress(RuntimeError):  # The loop is closed, so the result no longer matters.
                    self._loop.call_soon_threadsafe(self._on_late_return, notification)
                return
            if complete:
                notification.group.count(notification.began, notification.end_times)
            reports = notification.reports(complete=complete)
            self._reports.extend(reports)
            self._done_count += 1
            if self._done_count == self._awaited_count:
                with contextlib.suppress(RuntimeError):  # The lock is already released.
                    self._done_lock.release()
            if reports or self._waiters:
                try:
                    self._loop.call_soon_threadsafe(self._on_wake)
                except RuntimeError:
                    return  # The loop is closed.
            thread.notification = notification = None


class _ObserverThread:
    """A thread that runs observing hooks. `notification` is the event that the thread currently delivers."""

    def __init__(self, observers: ObserverThreads, notification: _Notification | None = None) -> None:
        self.notification: _Notification | None = None
        thread = threading.Thread(target=observers.serve, args=(self, notification), name="orch observers", daemon=True)
        thread.start()


class _Notification(TaskBatch):
    """The delivery of one event to a group, starting with the hook at position `first`.

    `end_token` is an iterator with one item. The thread takes the item when it has finished, or the caller takes it
    when it abandons the thread.
    """

    def __init__(self, group: ObserverGroup, event: Event, first: int = 0) -> None:
        super().__init__(group.tasks, enumerate(group.calls[first:] if first else group.calls, first), first)
        self.group, self.event = group, event
        self.end_token = iter(range(1))

    def run_tasks(self, overdue: frozenset[str]) -> bool:
        """Call the hooks, except the hooks in `overdue`. Return whether the whole group was called."""
        event, results, copies_event = self.event, self.results, isinstance(self.event, (ToolCall, ToolReturn))
        clock, add_end_time = perf_counter, self.end_times.append
        self.began = clock()
        for index, (function, second) in self.turns:
            try:
                if overdue and self.tasks[index][0] in overdue:
                    raise DeadlineExceeded(STILL_RUNNING)
                value = function(copy_event(event) if copies_event else event, second)
                if value is not None:
                    results[index] = value, None
            except Exception as raised:
                results[index] = None, raised
            except BaseException as raised:
                results[index] = None, transferable_error(raised)
            add_end_time(clock())
        return not (overdue or self.first)

    def reports(self, *, complete: bool) -> list[ObserverReport]:
        """Return the reports so far.

        If `complete` is True, the reports contain no durations, because the group counts them at once.
        """
        tasks, event, results = self.tasks, self.event, self.results
        if complete:
            return [ObserverReport(tasks[index][0], event, *result) for index, result in results.items()]
        durations, no_result = enumerate(self.durations(), self.first), (None, None)
        return [ObserverReport(tasks[at][0], event, *results.get(at, no_result), seconds) for at, seconds in durations]


# --- Batches for hooks that run elsewhere ---

T = TypeVar("T")


class NotificationQueue(Generic[T]):
    """Passes items to `send_batch` in order, in batches.

    A batch contains all items that arrived during the previous batch.
    """

    def __init__(self, send_batch: Callable[[Sequence[T]], Awaitable[None]]) -> None:
        self._send_batch = send_batch
        self._queued: list[T] = []
        self._delivery: asyncio.Task[None] | None = None

    @property
    def idle(self) -> bool:
        """Whether all items were passed on."""
        return self._delivery is None or self._delivery.done()

    def add(self, item: T) -> None:
        """Queue `item`."""
        self._queued.append(item)
        if self.idle:
            self._delivery = asyncio.create_task(self._deliver())

    async def wait_until_delivered(self) -> None:
        """Wait until all items were passed on."""
        if self._delivery is not None and not self.idle:
            await asyncio.wait([self._delivery])

    def stop(self) -> None:
        """Discard the queued items and cancel the running call."""
        self._queued.clear()
        if self._delivery is not None:
            self._delivery.cancel()

    async def _deliver(self) -> None:
        while self._queued:
            items, self._queued = self._queued, []
            await self._send_batch(items)
