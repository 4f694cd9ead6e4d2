"""Threads for plain functions: results, errors, and functions that hang."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from typing import Any

import pytest

from orch_worker.system.threads import DeadlineExceeded, Task, ThreadPool


def task(key: str, function: Callable[[], Any], seconds: float = 5.0) -> Task:
    """Return a task that makes nothing of its arguments."""
    return key, seconds, lambda _first, _second: function(), None


async def test_returns_and_raises_what_the_function_does() -> None:
    """A result comes back from the thread, and so does an error."""
    threads = ThreadPool()
    assert await threads.run("a", lambda: 3, 5.0) == 3
    with pytest.raises(ZeroDivisionError):
        await threads.run("a", lambda: 1 // 0, 5.0)
    threads.close()


@pytest.mark.parametrize("error", [SystemExit(3), KeyboardInterrupt(), StopIteration()])
async def test_what_would_end_the_process_is_an_error(error: BaseException) -> None:
    """A function that leaves the program, or ends an iteration, fails like any other."""

    def leave() -> None:
        raise error

    threads = ThreadPool()
    with pytest.raises(RuntimeError, match=type(error).__name__):
        await threads.run("a", leave, 5.0)
    threads.close()


async def test_never_on_the_loops_thread() -> None:
    """A function runs in another thread, the same one while that is free."""
    threads = ThreadPool()
    seen = {await threads.run("a", threading.get_ident, 5.0) for _ in range(3)}
    assert len(seen) == 1
    assert threading.get_ident() not in seen
    threads.close()


async def test_one_that_hangs_is_given_up_and_counted() -> None:
    """At its deadline a function is overdue until it returns; others run meanwhile, and no timer is left."""
    threads, go = ThreadPool(), threading.Event()
    with pytest.raises(DeadlineExceeded):
        await threads.run("slow", go.wait, 0.01)
    assert threads.overdue == {"slow": 1}
    assert await threads.run("quick", lambda: 1, 5.0) == 1
    go.set()
    while threads.overdue:  # noqa: ASYNC110
        await asyncio.sleep(0)
    threads.close()
    assert not [each for each in asyncio.get_running_loop()._scheduled if not each.cancelled()]  # type: ignore[attr-defined]


async def test_several_run_in_one_thread_in_order() -> None:
    """Functions that are called together share one thread, and each has its own result and error."""
    threads = ThreadPool()
    seen: list[object] = []

    def broken() -> None:
        raise ValueError("broken")

    tasks = [task(name, lambda name=name: seen.append((name, threading.get_ident()))) for name in "ab"]
    came = await threads.run_all([tasks[0], task("x", broken), tasks[1], task("y", lambda: 3)], range(4))
    assert [name for name, _ in seen] == ["a", "b"]  # type: ignore[misc,has-type]
    assert len({thread for _, thread in seen}) == 1  # type: ignore[misc,has-type]
    assert came.said.keys() == {1, 3}
    assert (type(came.said[1][1]), came.said[3]) == (ValueError, (3, None))
    assert len(came.seconds) == 4
    assert await threads.run_all([], []) == ([], {})
    threads.close()


async def test_behind_one_that_hangs_the_others_go_on() -> None:
    """Who hangs is late after its own time alone; those behind it are called once, in another thread."""
    threads, go = ThreadPool(), threading.Event()
    seen: list[str] = []

    def say(name: str) -> Task:
        return task(name, lambda: seen.append(name))

    came = await threads.run_all([say("a"), task("slow", lambda: go.wait(30), 0.02), say("b"), say("c")], range(4))
    assert seen == ["a", "b", "c"]
    assert {place: str(error) for place, (_, error) in came.said.items()} == {1: "did not answer within 0.02 s"}
    assert came.seconds[1] == 0.02
    assert threads.overdue == {"slow": 1}
    go.set()
    while threads.overdue:  # noqa: ASYNC110
        await asyncio.sleep(0)
    assert seen == ["a", "b", "c"]
    threads.close()


async def test_nobody_who_is_cancelled_waits() -> None:
    """Cancelling who waits gives the function up at once."""
    threads, go = ThreadPool(), threading.Event()
    begun = threading.Event()
    waiting = asyncio.create_task(threads.run("slow", lambda: begun.set() or go.wait(), 60.0))
    while not begun.is_set():  # noqa: ASYNC110
        await asyncio.sleep(0)
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    assert threads.overdue == {"slow": 1}
    go.set()
    while threads.overdue:  # noqa: ASYNC110
        await asyncio.sleep(0)
    threads.close()


async def test_threads_end_when_they_are_closed() -> None:
    """What was idle ends; nothing holds the program up."""
    threads = ThreadPool()
    thread: threading.Thread = await threads.run("a", threading.current_thread, 5.0)
    assert thread.daemon
    threads.close()
    thread.join(5.0)
    assert not thread.is_alive()
