"""Who waits is told once, and what is told to nobody is nobody's."""

from __future__ import annotations

import asyncio

import pytest

from orch.supervisor.timing.waiters import Waiters, expire
from orch_protocol.core.errors import AgentDiedError, ErrorInfo
from virtual_clock import passed, virtual


@virtual
async def test_everybody_who_waits_is_told() -> None:
    """With the value, at once; later ones wait for the next time."""
    waiters = Waiters()
    both = [asyncio.ensure_future(waiters.until("t", 10)) for _ in range(2)]
    await passed(1)
    waiters.tell("t", 5)
    late = asyncio.ensure_future(waiters.until("t", 10))
    assert await asyncio.gather(*both) == [5, 5]
    with pytest.raises(TimeoutError):
        await late
    assert waiters._topics == {}


@virtual
async def test_each_gets_an_error_of_its_own() -> None:
    """One that is raised twice would carry two stories."""
    waiters = Waiters()
    both = [waiters.watch("t") for _ in range(2)]
    waiters.tell("t", error=ErrorInfo("AgentDiedError", "dead"))
    one, other = await asyncio.gather(*both, return_exceptions=True)
    assert isinstance(one, AgentDiedError)
    assert isinstance(other, AgentDiedError)
    assert one is not other


@virtual
async def test_whoever_has_given_up_takes_nothing() -> None:
    """From the very moment on in which the time is over, or the wait is cancelled."""
    waiters = Waiters()
    expired, cancelled = waiters.watch("t", "one"), waiters.watch("t", "other")
    assert waiters.taker("t") == "one"
    expire(expired)
    assert waiters.taker("t") == "other"
    cancelled.cancel()
    assert waiters.taker("t") is None
    patient = waiters.watch("t", "third")
    waiters.tell("t", 1)
    assert await patient == 1
    assert waiters.taker("t") is None


@virtual
async def test_a_failure_of_all_reaches_all() -> None:
    """Whatever they wait for."""
    waiters = Waiters()
    futures = [waiters.watch(f"t{number}") for number in range(3)]
    waiters.fail(ErrorInfo("AgentDiedError", "closed"))
    for error in await asyncio.gather(*futures, return_exceptions=True):
        assert isinstance(error, AgentDiedError)
    assert waiters._topics == {}
