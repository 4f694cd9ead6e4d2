"""Functions and coroutines with time limits: results, errors, and calls that hang."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from typing import Any

import pytest

from orch_worker.system.threads import DeadlineExceeded, Task, ThreadPool, run_coroutine


def task(key: str, function: Callable[[], Any], seconds: float = 5.0) -> Task:
    """Return a task that calls `function` without arguments."""
    return key, seconds, lambda _first, _second: function(), None


async def test_thread_call_returns_the_result_or_raises() -> None:
    """`run` returns the result of the function or raises its exception."""
    threads = ThreadPool()
    assert await threads.run("a", lambda: 3, 5.0) == 3
    with pytest.raises(ZeroDivisionError):
        await threads.run("a", lambda: 1 // 0, 5.0)
    threads.close()


@pytest.mark.parametrize("error", [SystemExit(3), KeyboardInterrupt(), StopIteration()])
async def test_system_exit_and_stop_iteration_become_errors(error: BaseException) -> None:
    """An exception that would end the program or an iteration becomes a RuntimeError."""

    def leave() -> None:
        raise error

    threads = ThreadPool()
    with pytest.raises(RuntimeError, match=type(error).__name__):
        await threads.run("a", leave, 5.0)
    threads.close()


async def test_function_never_runs_on_the_loop_thread() -> None:
    """Calls one after the other reuse one thread, which is not the thread of the event loop."""
    threads = ThreadPool()
    seen = {await threads.run("a", threading.get_ident, 5.0) for _ in range(3)}
    assert len(seen) == 1
    assert threading.get_ident() not in seen
    threads.close()


async def test_hanging_function_times_out_and_is_counted() -> None:
    """The function counts as overdue until it returns. Other functions run, and no timer remains."""
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


async def test_batched_functions_run_in_order_in_one_thread() -> None:
    """Each function of a batch has a separate result or error."""
    threads = ThreadPool()
    seen: list[object] = []

    def broken() -> None:
        raise ValueError("broken")

    tasks = [task(name, lambda name=name: seen.append((name, threading.get_ident()))) for name in "ab"]
    came = await threads.run_all([tasks[0], task("x", broken), tasks[1], task("y", lambda: 3)], range(4))
    assert [name for name, _ in seen] == ["a", "b"]  # type: ignore[misc,has-type]
    assert len({thread for _, thread in seen}) == 1  # type: ignore[misc,has-type]
    assert came.results.keys() == {1, 3}
    assert (type(came.results[1][1]), came.results[3]) == (ValueError, (3, None))
    assert len(came.seconds) == 4
    assert await threads.run_all([], []) == ([], {})
    threads.close()


async def test_functions_behind_a_hanging_one_run_in_another_thread() -> None:
    """Each function is called once, and only the hanging function has a timeout error."""
    threads, go = ThreadPool(), threading.Event()
    seen: list[str] = []

    def say(name: str) -> Task:
        return task(name, lambda: seen.append(name))

    came = await threads.run_all([say("a"), task("slow", lambda: go.wait(30), 0.02), say("b"), say("c")], range(4))
    assert seen == ["a", "b", "c"]
    assert {place: str(error) for place, (_, error) in came.results.items()} == {1: "did not answer within 0.02 s"}
    assert came.seconds[1] == 0.02
    assert threads.overdue == {"slow": 1}
    go.set()
    while threads.overdue:  # noqa: ASYNC110
        await asyncio.sleep(0)
    assert seen == ["a", "b", "c"]
    threads.close()


async def test_cancelled_caller_does_not_wait() -> None:
    """After its caller is cancelled, a function counts as overdue until it returns."""
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


async def test_idle_threads_end_on_close() -> None:
    """The threads are daemon threads and end on `close`, so that the program can exit."""
    threads = ThreadPool()
    thread: threading.Thread = await threads.run("a", threading.current_thread, 5.0)
    assert thread.daemon
    threads.close()
    thread.join(5.0)
    assert not thread.is_alive()


async def test_a_coroutine_that_ignores_its_cancellation_is_abandoned() -> None:
    """The caller gets a DeadlineExceeded at the deadline."""
    released = asyncio.Event()

    async def stubborn() -> None:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            await released.wait()

    with pytest.raises(DeadlineExceeded, match=r"did not answer within 0\.01 s"):
        await run_coroutine(stubborn(), 0.01)
    released.set()


@pytest.mark.parametrize("error", [StopIteration, SystemExit, KeyboardInterrupt, asyncio.CancelledError])
async def test_no_exception_of_a_coroutine_ends_the_event_loop(error: type[BaseException]) -> None:
    """An exception that would end the event loop or the task becomes a RuntimeError."""

    async def fails() -> None:
        raise error

    with pytest.raises(RuntimeError):
        await run_coroutine(fails(), 10)
