"""Who waits goes on at once, where that can be."""

from __future__ import annotations

import asyncio
from asyncio import futures
from contextvars import ContextVar

import pytest

from orch_worker.transport.zmq_asyncio import hand_over
from virtual import virtual

WHOSE: ContextVar[str] = ContextVar("WHOSE")


async def waiting(future: asyncio.Future[int], whose: str, said: list[str]) -> None:
    """Say whose turn it is, and what came, once it is there."""
    WHOSE.set(whose)
    said.append(f"{await future} for {WHOSE.get()}")


async def told(future: asyncio.Future[int]) -> list[str]:
    """Return what is said, in order, when a callback hands over to two who wait for `future`."""
    said: list[str] = []
    tasks = [asyncio.create_task(waiting(future, whose, said)) for whose in ("one", "other")]
    await asyncio.sleep(0)

    def callback() -> None:
        hand_over(future, 5)
        said.append("behind it")

    asyncio.get_running_loop().call_soon(callback)
    await asyncio.gather(*tasks)
    return said


@virtual
async def test_who_waits_goes_on_before_the_callback_does() -> None:
    """All of them, in order, each in its own context."""
    assert await told(asyncio.get_running_loop().create_future()) == ["5 for one", "5 for other", "behind it"]


@virtual
async def test_within_a_task_nobody_else_goes_on() -> None:
    """Who waits does so in the next round, as ever."""
    said: list[str] = []
    future: asyncio.Future[int] = asyncio.get_running_loop().create_future()
    task = asyncio.create_task(waiting(future, "one", said))
    await asyncio.sleep(0)
    hand_over(future, 5)
    assert said == []
    await task
    assert said == ["5 for one"]


@virtual
async def test_whoever_goes_on_may_be_handed_over_to_again() -> None:
    """And what comes before somebody waits is there when somebody does."""
    loop, said = asyncio.get_running_loop(), list[str]()
    futures: list[asyncio.Future[int]] = [loop.create_future() for _ in range(3)]

    async def each() -> None:
        for future in futures:
            await waiting(future, "one", said)

    task = asyncio.create_task(each())
    await asyncio.sleep(0)
    for number, future in ((2, futures[2]), (0, futures[0]), (1, futures[1])):
        loop.call_soon(hand_over, future, number)
    await task
    assert said == ["0 for one", "1 for one", "2 for one"]


@virtual
async def test_futures_that_are_written_in_python_wake_everybody() -> None:
    """Those of who lets event loops run within one another: in the next round, for such a callback may take long."""
    future = futures._PyFuture(loop=asyncio.get_running_loop())  # type: ignore[attr-defined]
    assert await told(future) == ["behind it", "5 for one", "5 for other"]


def test_whoever_leaves_the_program_keeps_nobody_waiting() -> None:
    """`sys.exit` ends the event loop, which then cancels the others, and waits for them."""
    said: list[str] = []
    tasks: list[asyncio.Task[None]] = []

    async def leaving(future: asyncio.Future[int]) -> None:
        await future
        raise SystemExit(3)

    async def main() -> None:
        loop = asyncio.get_running_loop()
        future: asyncio.Future[int] = loop.create_future()
        tasks[:] = [asyncio.create_task(each) for each in (leaving(future), waiting(future, "other", said))]
        await asyncio.sleep(0)
        loop.call_soon(hand_over, future, 5)
        await asyncio.wait(tasks)

    with pytest.raises(SystemExit):
        asyncio.run(main())
    assert said == []
    assert isinstance(tasks[0].exception(), SystemExit)
