"""Waiters: each receives a result once."""

from __future__ import annotations

import asyncio

import pytest

from orch.supervisor.timing.waiters import Waiters, expire
from orch_protocol.core.errors import AgentDiedError, ErrorInfo
from virtual_clock import passed, virtual


@virtual
async def test_all_waiters_receive_the_value() -> None:
    """Waiters of a topic receive the value at once. A later waiter waits for the next value."""
    waiters = Waiters()
    both = [asyncio.ensure_future(waiters.until("t", 10)) for _ in range(2)]
    await passed(1)
    waiters.notify("t", 5)
    late = asyncio.ensure_future(waiters.until("t", 10))
    assert await asyncio.gather(*both) == [5, 5]
    with pytest.raises(TimeoutError):
        await late
    assert waiters._topics == {}


@virtual
async def test_each_waiter_gets_its_own_error() -> None:
    """An exception object that is raised twice would contain both tracebacks."""
    waiters = Waiters()
    both = [waiters.watch("t") for _ in range(2)]
    waiters.notify("t", error=ErrorInfo("AgentDiedError", "dead"))
    one, other = await asyncio.gather(*both, return_exceptions=True)
    assert isinstance(one, AgentDiedError)
    assert isinstance(other, AgentDiedError)
    assert one is not other


@virtual
async def test_cancelled_or_timed_out_waiter_takes_nothing() -> None:
    """From the moment of its timeout or cancellation, a waiter is no longer the taker of a value."""
    waiters = Waiters()
    expired, cancelled = waiters.watch("t", "one"), waiters.watch("t", "other")
    assert waiters.taker("t") == "one"
    expire(expired)
    assert waiters.taker("t") == "other"
    cancelled.cancel()
    assert waiters.taker("t") is None
    patient = waiters.watch("t", "third")
    waiters.notify("t", 1)
    assert await patient == 1
    assert waiters.taker("t") is None


@virtual
async def test_failing_all_waiters_reaches_each() -> None:
    """The error reaches the waiters of every topic."""
    waiters = Waiters()
    futures = [waiters.watch(f"t{number}") for number in range(3)]
    waiters.fail(ErrorInfo("AgentDiedError", "closed"))
    for error in await asyncio.gather(*futures, return_exceptions=True):
        assert isinstance(error, AgentDiedError)
    assert waiters._topics == {}
