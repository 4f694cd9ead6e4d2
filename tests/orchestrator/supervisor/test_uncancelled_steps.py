"""Steps that continue after their caller has stopped waiting."""

from __future__ import annotations

import asyncio

import pytest

from orch.supervisor.uncancelled_steps import UncancelledSteps


async def test_close_waits_for_steps_of_canceled_callers() -> None:
    """`close` also waits for steps that a step has started. Their unretrieved exceptions are not logged."""
    steps, go, done = UncancelledSteps(), asyncio.Event(), list[str]()

    async def second() -> None:
        await asyncio.sleep(0)
        done.append("second")
        raise ValueError

    async def first() -> None:
        await go.wait()
        done.append("first")
        steps.start(second())

    caller = asyncio.ensure_future(steps.run(first()))
    await asyncio.sleep(0)
    caller.cancel()
    with pytest.raises(asyncio.CancelledError):
        await caller
    await steps.close(0.0)
    assert done == []
    go.set()
    await steps.close(60.0)
    assert done == ["first", "second"]
