"""Plain hooks that only observe: one thread calls them, event after event, and nobody comes back for each of them."""

from __future__ import annotations

import asyncio
import contextlib
import os
import threading
from collections import Counter, deque
from collections.abc import Awaitable, Callable, Iterator, Sequence
from operator import add, sub
from time import perf_counter
from typing import Any, Final, Generic, NamedTuple, TypeVar

from orch_protocol.hooks.events import Event, ToolCall, ToolReturn

from ..system.threads import DeadlineExceeded, Task, transferable_error
from .invoke import STILL, copy_event

__all__ = ["NotificationQueue", "ObserverGroup", "ObserverReport", "ObserverThreads"]


BRIEF: Final = 0.001
"""Seconds that the event loop itself waits for the thread once somebody waits for it, before it goes on elsewhere."""
MOST_WAKES: Final = 1 << 16


class ObserverReport(NamedTuple):
    """What came of telling the hook `name` of `event`, when it was more than nothing. `seconds` are to be counted for
    it, with a call, None when they are already."""

    name: str
    event: Event
    value: Any
    error: Exception | None
    seconds: float | None = None


class ObserverGroup:
    """Hooks that are told of an event together, in order, and how long that took each of them.

    The thread alone adds to `_total`: how often all were called, and for each the seconds that they took in all.
    """

    def __init__(self, tasks: Sequence[Task]) -> None:
        self.tasks = tuple(tasks)
        self.calls = [(function, second) for _, _, function, second in tasks]
        self.shortest = min((seconds for _, seconds, _, _ in tasks), default=0.0)
        self._total: tuple[int, list[float]] = (0, [0.0] * len(tasks))
        self._taken = self._total

    def count(self, began: float, ended: Sequence[float]) -> None:
        """All were called, the first one from `began` on, and each until its one of `ended`."""
        calls, seconds = self._total
        self._total = (calls + 1, list(map(add, seconds, map(sub, ended, (began, *ended)))))

    def take(self) -> Iterator[tuple[str, int, float]]:
        """Return of each hook how often it was called since this was asked last, and the seconds that this took."""
        (before, spent), (now, seconds) = self._taken, self._total
        self._taken = (now, seconds)
        if now > before:
            for (name, *_), old, new in zip(self.tasks, spent, seconds, strict=True):
                yield name, now - before, new - old


class ObserverThreads:
    """Tells hooks of events: all in one thread, in order, without anybody waiting for it unless they ask to.

    One that does not return in time is left behind with its thread, counted in `overdue` until it returns, and another
    thread goes on. `note` is told of what they said, on the thread of the event loop.
    """

    def __init__(self, note: Callable[[ObserverReport], None]) -> None:
        self.overdue: Counter[str] = Counter()
        self._note = note
        self._loop = asyncio.get_running_loop()
        self._queue: deque[tuple[ObserverGroup, Event]] = deque()
        self._thread: _ObserverThread | None = None
        self._wakes = self._wake = -1
        """A pipe that wakes the thread. Unlike a lock it lets go of the interpreter: who wakes need not wait again."""
        self._ended = self._closed = False
        self._added = self._done = 0
        self._said: deque[ObserverReport] = deque()
        self._bell = threading.Lock()
        self._bell.acquire()
        self._awaited = -1
        """After how many events the bell is to be rung."""
        self._waiters: list[asyncio.Future[None]] = []
        self._timer: asyncio.TimerHandle | None = None
        self._shortest = 0.0

    def add(self, crowd: ObserverGroup, event: Event) -> None:
        """Let `crowd` be told of `event` once everything before it is told; nobody is, once this is closed."""
        if self._closed:
            return  # the number of the pipe may be another file's by now
        self._added += 1
        self._queue.append((crowd, event))
        if self._thread is None:
            self._wakes, self._wake = os.pipe()
            os.set_blocking(self._wake, False)
            self._thread = _ObserverThread(self)
        with contextlib.suppress(BlockingIOError):  # so many wait for it that it is awake, or hangs
            os.write(self._wake, b"\0")
        if self._timer is None:
            self._shortest = crowd.shortest
            self._timer = self._loop.call_later(crowd.shortest, self._look)
        elif crowd.shortest < self._shortest:
            self._shortest = crowd.shortest
            self._look_within(crowd.shortest)

    @property
    def idle(self) -> bool:
        """Whether everything is told."""
        return self._done >= self._added

    async def told(self) -> None:
        """Return when everything so far is told."""
        target = self._added
        if self._done < target:
            self._awaited = target
            until = perf_counter() + BRIEF
            while self._done < target and (left := until - perf_counter()) > 0:
                self._bell.acquire(timeout=left)
            self._awaited = -1
        while self._done < target:
            waiter: asyncio.Future[None] = self._loop.create_future()
            self._waiters.append(waiter)
            if self._done < target:
                await waiter

    def collect(self) -> None:
        """Note what hooks have said so far."""
        while self._said:
            self._note(self._said.popleft())

    def close(self) -> None:
        """End the thread once it has told everything; closing twice does nothing."""
        if self._timer is not None:
            self._timer.cancel()
        if self._thread is not None and not self._closed:
            os.close(self._wake)
        self._closed = True

    # On the thread of the event loop.

    def _woken(self) -> None:
        try:
            self.collect()
        finally:
            waiters, self._waiters = self._waiters, []
            for waiter in waiters:
                if not waiter.done():
                    waiter.set_result(None)

    def _look_within(self, seconds: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = self._loop.call_later(seconds, self._look)

    def _look(self) -> None:
        """Leave one behind that is late; look again when the next one may be."""
        self._timer = None
        if self._done >= self._added or self._thread is None:
            return
        round_ = self._thread.round
        left = round_.left() if round_ is not None else self._shortest
        if left <= 0 and round_ is not None:
            self._leave(round_)
            left = self._shortest
        self._look_within(min(left, self._shortest))

    def _leave(self, round_: _Notification) -> None:
        if next(round_.ends, None) is None:
            return  # it has just ended
        stop = len(round_.crowd.tasks) - len(list(round_.turns))
        said = round_.said(whole=False)
        self._said.extend(said)
        # The next one is late, also where it returns just now: what it says is not among what was taken down.
        place = round_.first + len(said)
        if place < stop:
            name, most, _, _ = round_.crowd.tasks[place]
            round_.hangs = name
            self.overdue[name] += 1
            self._said.append(
                ObserverReport(name, round_.event, None, DeadlineExceeded(f"did not answer within {most:g} s"), most)
            )
        self._thread = _ObserverThread(self, _Notification(round_.crowd, round_.event, stop))
        self.collect()

    def _returned(self, round_: _Notification) -> None:
        if round_.hangs:
            self.overdue[round_.hangs] -= 1
            if not self.overdue[round_.hangs]:
                del self.overdue[round_.hangs]

    # On the thread that tells.

    def serve(self, ear: _ObserverThread, round_: _Notification | None) -> None:
        """Tell what there is to tell, the rest of `round_` first, until `ear` is left behind or nothing more comes."""
        while True:
            if round_ is None:
                while not self._queue:
                    if self._ended:
                        os.close(self._wakes)
                        return
                    self._ended = not os.read(self._wakes, MOST_WAKES)
                round_ = _Notification(*self._queue.popleft())
            ear.round = round_
            whole = round_.work(frozenset(self.overdue))
            if next(round_.ends, None) is None:
                with contextlib.suppress(RuntimeError):  # the loop is closed: nobody counts any more
                    self._loop.call_soon_threadsafe(self._returned, round_)
                return
            if whole:
                round_.crowd.count(round_.began, round_.ended)
            said = round_.said(whole=whole)
            self._said.extend(said)
            self._done += 1
            if self._done == self._awaited:
                with contextlib.suppress(RuntimeError):  # rung already
                    self._bell.release()
            if said or self._waiters:
                try:
                    self._loop.call_soon_threadsafe(self._woken)
                except RuntimeError:
                    return  # the loop is closed
            ear.round = round_ = None


class _ObserverThread:
    """A thread that tells, and what it is at."""

    def __init__(self, listeners: ObserverThreads, round_: _Notification | None = None) -> None:
        self.round: _Notification | None = None
        work = threading.Thread(target=listeners.serve, args=(self, round_), name="orch observers", daemon=True)
        work.start()


class _Notification:
    """A crowd that is told of an event, from its hook at the place `first` on.

    Whose turn it is to call a hook is who takes the next one of `turns`: the thread, or whoever leaves it behind, who
    takes all there are. Likewise the one number of `ends`: whether the thread ended it, or was left. No lock is needed.
    """

    def __init__(self, crowd: ObserverGroup, event: Event, first: int = 0) -> None:
        self.crowd, self.event, self.first = crowd, event, first
        self.turns = enumerate(crowd.calls[first:] if first else crowd.calls, first)
        self.ends = iter(range(1))
        self.began = perf_counter()
        self.ended: list[float] = []
        """When each of those ended that are done."""
        self.came: dict[int, tuple[Any, Exception | None]] = {}
        """What they returned that was not None, and what they raised, by place."""
        self.hangs = ""
        """Who the thread was left behind with."""

    def left(self) -> float:
        """Return for how many seconds the call under way may go on."""
        done = len(self.ended)
        place = min(self.first + done, len(self.crowd.tasks) - 1)
        return (self.ended[done - 1] if done else self.began) + self.crowd.tasks[place][1] - perf_counter()

    def work(self, late: frozenset[str]) -> bool:
        """Call the hooks, but for those who are `late` with an earlier event; return whether it was all of a crowd."""
        event, came, alone = self.event, self.came, isinstance(self.event, (ToolCall, ToolReturn))
        clock, note = perf_counter, self.ended.append
        self.began = clock()
        for place, (function, second) in self.turns:
            try:
                if late and self.crowd.tasks[place][0] in late:
                    raise DeadlineExceeded(STILL)
                value = function(copy_event(event) if alone else event, second)
                if value is not None:
                    came[place] = value, None
            except Exception as raised:
                came[place] = None, raised
            except BaseException as raised:
                came[place] = None, transferable_error(raised)
            note(clock())
        return not (late or self.first)

    def said(self, *, whole: bool) -> list[ObserverReport]:
        """Return what was said so far; with what each call took, unless that is counted for the `whole` crowd."""
        tasks, event, ended = self.crowd.tasks, self.event, tuple(self.ended)
        if whole:
            return [ObserverReport(tasks[place][0], event, *came) for place, came in self.came.items()]
        took = enumerate(map(sub, ended, (self.began, *ended)), self.first)
        nothing = (None, None)
        return [ObserverReport(tasks[at][0], event, *self.came.get(at, nothing), seconds) for at, seconds in took]


# --- Hooks that only observe ---

T = TypeVar("T")


class NotificationQueue(Generic[T]):
    """Hands `tell` what there is to tell, in order and never twice at a time: all that came while it was at work."""

    def __init__(self, tell: Callable[[Sequence[T]], Awaitable[None]]) -> None:
        self._tell = tell
        self._waiting: list[T] = []
        self._work: asyncio.Task[None] | None = None

    @property
    def idle(self) -> bool:
        """Whether everything is told."""
        return self._work is None or self._work.done()

    def add(self, item: T) -> None:
        """Let `item` be told as soon as everything before it is."""
        self._waiting.append(item)
        if self.idle:
            self._work = asyncio.create_task(self._until_told())

    async def told(self) -> None:
        """Return when everything is told."""
        if self._work is not None and not self.idle:
            await asyncio.wait([self._work])

    def stop(self) -> None:
        """Tell nothing more."""
        self._waiting.clear()
        if self._work is not None:
            self._work.cancel()

    async def _until_told(self) -> None:
        while self._waiting:
            items, self._waiting = self._waiting, []
            await self._tell(items)
