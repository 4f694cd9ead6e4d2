"""Hooks that only observe, told in a thread of their own: order, errors, those that hang, what is counted."""

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


class Room:
    """Some who listen, and what is noted of them."""

    def __init__(self) -> None:
        self.noted: list[ObserverReport] = []
        self.heard: list[Any] = []
        self.listeners = ObserverThreads(self.noted.append)

    def crowd(self, *tasks: tuple[str, Callable[[Event], Any]], seconds: float = 5.0) -> ObserverGroup:
        """Return those who do this with an event, each within so many seconds."""
        return ObserverGroup([(name, seconds, lambda event, _, act=act: act(event), None) for name, act in tasks])

    def says(self, name: str) -> tuple[str, Callable[[Event], Any]]:
        """Return one that hears the number of an event."""
        return name, lambda event: self.heard.append((name, event.n))

    async def told(self) -> None:
        """Wait for all of them."""
        await self.listeners.told()
        self.listeners.collect()


@contextmanager
def room() -> Iterator[Room]:
    """Let some listen for a while."""
    made = Room()
    yield made
    made.listeners.close()


async def returned(listeners: ObserverThreads) -> None:
    """Wait until nobody hangs any more."""
    while listeners.overdue:  # noqa: ASYNC110
        await asyncio.sleep(0)


async def test_events_are_told_in_order_and_each_to_all() -> None:
    """Whoever adds events goes on; nobody hears two at once, or the second one first; each call is counted once."""
    with room() as all_:
        crowd = all_.crowd(all_.says("a"), all_.says("b"))
        for number in range(3):
            all_.listeners.add(crowd, StepStart(n=number))
        await all_.told()
        assert all_.heard == [(name, number) for number in range(3) for name in "ab"]
        counted = list(crowd.take())
        assert [(name, calls) for name, calls, _ in counted] == [("a", 3), ("b", 3)]
        assert all(seconds > 0 for *_, seconds in counted)
        assert (list(crowd.take()), all_.noted) == ([], [])


async def test_what_is_done_at_once_takes_no_round_of_the_loop() -> None:
    """The event loop itself waits for a moment: that spares it a round through the system."""
    with room() as all_:
        rounds: list[int] = []
        go = threading.Event()
        all_.listeners.add(all_.crowd(("a", lambda _: go.wait(30))), StepStart())
        go.set()
        asyncio.get_running_loop().call_soon(rounds.append, 1)
        while not all_.listeners.idle:
            pass
        await all_.told()
        assert rounds == []


async def test_what_takes_longer_is_awaited_while_the_loop_goes_on() -> None:
    """What a hook waits for can happen on the event loop, and two can wait for it at once."""
    with room() as all_:
        go = threading.Event()
        all_.listeners.add(all_.crowd(("a", lambda _: go.wait(30) and None)), StepStart())
        asyncio.get_running_loop().call_later(0.005, go.set)
        await asyncio.gather(all_.told(), all_.told())
        assert all_.listeners.idle


@pytest.mark.parametrize("error", [ValueError("no"), SystemExit(3), KeyboardInterrupt(), StopIteration()])
async def test_what_one_raises_or_returns_is_noted_and_the_others_hear_all(error: BaseException) -> None:
    """Nothing that a hook raises ends the thread, and its name and event are told with it."""

    def broken(_: Event) -> None:
        raise error

    with room() as all_:
        all_.listeners.add(all_.crowd(("x", broken), ("y", lambda _: 3), all_.says("a")), StepStart(n=7))
        await all_.told()
        assert [(each.name, each.event.n, each.value, each.seconds) for each in all_.noted] == [
            ("x", 7, None, None),
            ("y", 7, 3, None),
        ]
        assert type(error).__name__ in repr(all_.noted[0].error)
        assert all_.heard == [("a", 7)]


async def test_behind_one_that_hangs_the_others_go_on_in_another_thread() -> None:
    """It is late at its own deadline, and not called until it returns; nothing is told twice."""
    go = threading.Event()
    with room() as all_:
        crowd = all_.crowd(all_.says("a"), ("slow", lambda _: go.wait(30) and None), all_.says("b"), seconds=0.02)
        for number in (1, 2):
            all_.listeners.add(crowd, StepStart(n=number))
        await all_.told()
        assert all_.heard == [("a", 1), ("b", 1), ("a", 2), ("b", 2)]
        assert all_.listeners.overdue == {"slow": 1}
        late = [(each.event.n, str(each.error)) for each in all_.noted if isinstance(each.error, DeadlineExceeded)]
        assert late == [(1, "did not answer within 0.02 s"), (2, "is still at work on an earlier event")]
        counted = [each.name for each in all_.noted if each.seconds is not None]
        assert (sorted(counted), list(crowd.take())) == (["a", "a", "b", "b", "slow", "slow"], [])
        go.set()
        await returned(all_.listeners)
        all_.listeners.add(crowd, StepStart(n=3))
        await all_.told()
        assert all_.heard[4:] == [("a", 3), ("b", 3)]
        assert [calls for _, calls, _ in crowd.take()] == [1, 1, 1]


async def test_one_whose_time_is_short_is_late_at_its_own_deadline() -> None:
    """However long those before it may take, whom the clock was set for first."""
    go = threading.Event()
    with room() as all_:
        all_.listeners.add(all_.crowd(all_.says("a")), StepStart())
        all_.listeners.add(all_.crowd(("slow", lambda _: go.wait(30) and None), seconds=0.02), StepStart())
        await all_.told()
        assert [each.name for each in all_.noted] == ["slow"]
        go.set()
        await returned(all_.listeners)


async def test_thousands_of_meetings_lose_no_event() -> None:
    """Whoever is first, the thread or who waits for it, what was told is told."""
    with room() as all_:
        crowd = all_.crowd(all_.says("a"))
        for number in range(2000):
            all_.listeners.add(crowd, StepStart(n=number))
            await all_.told()
            assert len(all_.heard) == number + 1


async def test_who_meddles_with_arguments_is_alone_with_them() -> None:
    """Each is given arguments of its own."""
    with room() as all_:
        meddle = ("a", lambda event: event.input.clear())
        look = ("b", lambda event: all_.heard.append(event.input))
        all_.listeners.add(all_.crowd(meddle, look), ToolCall(id="1", name="x", input={"word": "a"}))
        await all_.told()
        assert all_.heard == [{"word": "a"}]


async def test_the_thread_ends_when_all_is_told() -> None:
    """Closing loses nothing, leaves no timer and no file open, and holds nobody up who leaves the program."""
    before = os.listdir("/proc/self/fd")
    with room() as all_:
        all_.listeners.add(all_.crowd(("a", lambda _: all_.heard.append(threading.current_thread()))), StepStart())
    await all_.told()
    thread: threading.Thread = all_.heard[0]
    assert thread.daemon
    thread.join(5.0)
    assert not thread.is_alive()
    assert len(os.listdir("/proc/self/fd")) <= len(before)  # the thread of a test before may have just ended
    timers = asyncio.get_running_loop()._scheduled  # type: ignore[attr-defined]
    assert not [each for each in timers if not each.cancelled()]


async def test_what_happens_after_it_is_closed_is_told_to_nobody(tmp_path: Path) -> None:
    """And written nowhere: the number of its pipe may be that of another file by then."""
    with room() as all_:
        crowd = all_.crowd(all_.says("a"))
        all_.listeners.add(crowd, StepStart(n=1))
        await all_.told()
        wake = all_.listeners._wake
        all_.listeners.close()
        (tmp_path / "other").touch()
        other = os.open(tmp_path / "other", os.O_RDWR)
        os.dup2(other, wake)
        all_.listeners.add(crowd, StepStart(n=2))
        await all_.told()
        all_.listeners.close()
        assert os.fstat(wake).st_size == 0
        for each in {wake, other}:
            os.close(each)
    assert all_.heard == [("a", 1)]


async def test_who_waits_goes_on_when_what_was_said_cannot_be_noted() -> None:
    """That is an error of whoever notes it, and no reason to wait for ever."""
    with room() as all_:
        go = threading.Event()

        def fail(said: ObserverReport) -> None:
            raise ValueError(said.name)

        all_.listeners._note = fail
        asyncio.get_running_loop().set_exception_handler(lambda _loop, told: all_.heard.append(told["exception"]))
        all_.listeners.add(all_.crowd(("a", lambda _: go.wait(30))), StepStart())
        asyncio.get_running_loop().call_later(0.005, go.set)
        async with asyncio.timeout(20):
            await all_.listeners.told()
        assert [str(error) for error in all_.heard] == ["a"]
