"""Observer hooks in a separate thread: order, errors, timeouts and counts."""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from orch_protocol.hooks.events import Event, StepStart, ToolCall
from orch_worker.hooks.observers import ObserverGroup, ObserverReport, ObserverThreads
from orch_worker.system.threads import DeadlineExceeded


class Observers:
    """Observers, the reports about them, and the events that they received."""

    def __init__(self) -> None:
        self.noted: list[ObserverReport] = []
        self.heard: list[Any] = []
        self.listeners = ObserverThreads(self.noted.append)

    def group(self, *tasks: tuple[str, Callable[[Event], Any]], seconds: float = 5.0) -> ObserverGroup:
        """Return a group of observers that run these functions, each with a timeout of `seconds`."""
        return ObserverGroup([(name, seconds, lambda event, _, act=act: act(event), None) for name, act in tasks])

    def says(self, name: str) -> tuple[str, Callable[[Event], Any]]:
        """Return an observer that records its name and the number of the event."""
        return name, lambda event: self.heard.append((name, event.n))

    async def wait_until_delivered(self) -> None:
        """Wait until all observers have received all events."""
        await self.listeners.wait_until_delivered()
        self.listeners.collect()


@contextmanager
def open_observers() -> Iterator[Observers]:
    """Yield observers that are closed at the end."""
    made = Observers()
    yield made
    made.listeners.close()


async def none_overdue(listeners: ObserverThreads) -> None:
    """Wait until no observer is overdue."""
    while listeners.overdue:  # noqa: ASYNC110
        await asyncio.sleep(0)


async def test_observers_receive_events_in_order_one_at_a_time() -> None:
    """Each call is counted once."""
    with open_observers() as observers:
        group = observers.group(observers.says("a"), observers.says("b"))
        for number in range(3):
            observers.listeners.add(group, StepStart(n=number))
        await observers.wait_until_delivered()
        assert observers.heard == [(name, number) for number in range(3) for name in "ab"]
        counted = list(group.take())
        assert [(name, calls) for name, calls, _ in counted] == [("a", 3), ("b", 3)]
        assert all(seconds > 0 for *_, seconds in counted)
        assert (list(group.take()), observers.noted) == ([], [])


async def test_fast_observers_finish_without_yielding_to_the_loop() -> None:
    """Waiting for observers that have finished runs no other callback of the event loop."""
    with open_observers() as observers:
        rounds: list[int] = []
        go = threading.Event()
        observers.listeners.add(observers.group(("a", lambda _: go.wait(30))), StepStart())
        go.set()
        asyncio.get_running_loop().call_soon(rounds.append, 1)
        while not observers.listeners.idle:
            pass
        await observers.wait_until_delivered()
        assert rounds == []


async def test_slow_observers_are_awaited_while_the_loop_runs() -> None:
    """Two callers can wait at the same time."""
    with open_observers() as observers:
        go = threading.Event()
        observers.listeners.add(observers.group(("a", lambda _: go.wait(30) and None)), StepStart())
        asyncio.get_running_loop().call_later(0.005, go.set)
        await asyncio.gather(observers.wait_until_delivered(), observers.wait_until_delivered())
        assert observers.listeners.idle


@pytest.mark.parametrize("error", [ValueError("no"), SystemExit(3), KeyboardInterrupt(), StopIteration()])
async def test_observer_errors_are_recorded_and_others_still_called(error: BaseException) -> None:
    """The report has the name of the observer and the event."""

    def broken(_: Event) -> None:
        raise error

    with open_observers() as observers:
        observers.listeners.add(observers.group(("x", broken), ("y", lambda _: 3), observers.says("a")), StepStart(n=7))
        await observers.wait_until_delivered()
        assert [(each.name, each.event.n, each.value, each.seconds) for each in observers.noted] == [
            ("x", 7, None, None),
            ("y", 7, 3, None),
        ]
        assert type(error).__name__ in repr(observers.noted[0].error)
        assert observers.heard == [("a", 7)]


async def test_observers_behind_a_hanging_one_run_in_another_thread() -> None:
    """The hanging observer is skipped until it returns, and no event is delivered twice."""
    go = threading.Event()
    with open_observers() as observers:
        group = observers.group(
            observers.says("a"), ("slow", lambda _: go.wait(30) and None), observers.says("b"), seconds=0.02
        )
        for number in (1, 2):
            observers.listeners.add(group, StepStart(n=number))
        await observers.wait_until_delivered()
        assert observers.heard == [("a", 1), ("b", 1), ("a", 2), ("b", 2)]
        assert observers.listeners.overdue == {"slow": 1}
        late = [(each.event.n, str(each.error)) for each in observers.noted if isinstance(each.error, DeadlineExceeded)]
        assert late == [(1, "did not answer within 0.02 s"), (2, "is still at work on an earlier event")]
        counted = [each.name for each in observers.noted if each.seconds is not None]
        assert (sorted(counted), list(group.take())) == (["a", "a", "b", "b", "slow", "slow"], [])
        go.set()
        await none_overdue(observers.listeners)
        observers.listeners.add(group, StepStart(n=3))
        await observers.wait_until_delivered()
        assert observers.heard[4:] == [("a", 3), ("b", 3)]
        assert [calls for _, calls, _ in group.take()] == [1, 1, 1]


async def test_observer_with_a_short_timeout_is_late_at_its_own_deadline() -> None:
    """The longer timeout of an earlier observer has no influence."""
    go = threading.Event()
    with open_observers() as observers:
        observers.listeners.add(observers.group(observers.says("a")), StepStart())
        observers.listeners.add(observers.group(("slow", lambda _: go.wait(30) and None), seconds=0.02), StepStart())
        await observers.wait_until_delivered()
        assert [each.name for each in observers.noted] == ["slow"]
        go.set()
        await none_overdue(observers.listeners)


async def test_concurrent_completion_and_wait_lose_no_event() -> None:
    """Every event is delivered if the thread and the caller finish at nearly the same time."""
    with open_observers() as observers:
        group = observers.group(observers.says("a"))
        for number in range(2000):
            observers.listeners.add(group, StepStart(n=number))
            await observers.wait_until_delivered()
            assert len(observers.heard) == number + 1


async def test_observers_get_separate_copies_of_arguments() -> None:
    """An observer that changes the arguments does not change the arguments of the next observer."""
    with open_observers() as observers:
        change = ("a", lambda event: event.input.clear())
        record = ("b", lambda event: observers.heard.append(event.input))
        observers.listeners.add(observers.group(change, record), ToolCall(id="1", name="x", input={"word": "a"}))
        await observers.wait_until_delivered()
        assert observers.heard == [{"word": "a"}]


async def test_thread_ends_after_the_last_event() -> None:
    """Closing delivers the last event and leaves no timer and no file descriptor."""
    before = os.listdir("/proc/self/fd")
    with open_observers() as observers:
        observers.listeners.add(
            observers.group(("a", lambda _: observers.heard.append(threading.current_thread()))), StepStart()
        )
    await observers.wait_until_delivered()
    thread: threading.Thread = observers.heard[0]
    assert thread.daemon
    thread.join(5.0)
    assert not thread.is_alive()
    assert len(os.listdir("/proc/self/fd")) <= len(before)  # a thread of an earlier test may have just ended
    timers = asyncio.get_running_loop()._scheduled  # type: ignore[attr-defined]
    assert not [each for each in timers if not each.cancelled()]


async def test_events_after_close_are_dropped(tmp_path: Path) -> None:
    """After closing, no byte is written to the descriptor of the pipe, which may have been reused."""
    with open_observers() as observers:
        group = observers.group(observers.says("a"))
        observers.listeners.add(group, StepStart(n=1))
        await observers.wait_until_delivered()
        wake = observers.listeners._wake_writer
        observers.listeners.close()
        (tmp_path / "other").touch()
        other = os.open(tmp_path / "other", os.O_RDWR)
        os.dup2(other, wake)
        observers.listeners.add(group, StepStart(n=2))
        await observers.wait_until_delivered()
        observers.listeners.close()
        assert os.fstat(wake).st_size == 0
        for each in {wake, other}:
            os.close(each)
    assert observers.heard == [("a", 1)]


async def test_waiter_resumes_when_a_result_cannot_be_recorded() -> None:
    """The error is passed to the exception handler of the event loop."""
    with open_observers() as observers:
        go = threading.Event()

        def fail(text: ObserverReport) -> None:
            raise ValueError(text.name)

        observers.listeners._on_report = fail
        asyncio.get_running_loop().set_exception_handler(lambda _loop, told: observers.heard.append(told["exception"]))
        observers.listeners.add(observers.group(("a", lambda _: go.wait(30))), StepStart())
        asyncio.get_running_loop().call_later(0.005, go.set)
        async with asyncio.timeout(20):
            await observers.listeners.wait_until_delivered()
        assert [str(error) for error in observers.heard] == ["a"]
