"""Threads for plain functions: results, errors, and functions that hang."""

from __future__ import annotations

import asyncio
import threading

import pytest

from orch_worker.threads import Overdue, Threads


async def test_returns_and_raises_what_the_function_does() -> None:
    """A result comes back from the thread, and so does an error."""
    threads = Threads()
    assert await threads.run("a", lambda: 3, 5.0) == 3
    with pytest.raises(ZeroDivisionError):
        await threads.run("a", lambda: 1 // 0, 5.0)
    threads.close()


@pytest.mark.parametrize("error", [SystemExit(3), KeyboardInterrupt(), StopIteration()])
async def test_what_would_end_the_process_is_an_error(error: BaseException) -> None:
    """A function that leaves the program, or ends an iteration, fails like any other."""

    def leave() -> None:
        raise error

    threads = Threads()
    with pytest.raises(RuntimeError, match=type(error).__name__):
        await threads.run("a", leave, 5.0)
    threads.close()


async def test_never_on_the_loops_thread() -> None:
    """A function runs in another thread, the same one while that is free."""
    threads = Threads()
    seen = {await threads.run("a", threading.get_ident, 5.0) for _ in range(3)}
    assert len(seen) == 1
    assert threading.get_ident() not in seen
    threads.close()


async def test_one_that_hangs_is_given_up_and_counted() -> None:
    """At its deadline a function is overdue until it returns; others run meanwhile, and no timer is left."""
    threads, go = Threads(), threading.Event()
    with pytest.raises(Overdue):
        await threads.run("slow", go.wait, 0.01)
    assert threads.overdue == {"slow": 1}
    assert await threads.run("quick", lambda: 1, 5.0) == 1
    go.set()
    while threads.overdue:  # noqa: ASYNC110
        await asyncio.sleep(0)
    threads.close()
    assert not [each for each in asyncio.get_running_loop()._scheduled if not each.cancelled()]  # type: ignore[attr-defined]


async def test_nobody_who_is_cancelled_waits() -> None:
    """Cancelling who waits gives the function up at once."""
    threads, go = Threads(), threading.Event()
    waiting = asyncio.create_task(threads.run("slow", go.wait, 60.0))
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
    threads = Threads()
    thread: threading.Thread = await threads.run("a", threading.current_thread, 5.0)
    assert thread.daemon
    threads.close()
    thread.join(5.0)
    assert not thread.is_alive()
