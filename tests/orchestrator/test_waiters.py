"""Who waits is told once, and what is told to nobody is nobody's."""

from __future__ import annotations

import asyncio

import pytest

from orch.supervisor.waiters import Waiters, expire
from orch_protocol.core.errors import AgentDiedError, ErrorInfo
from virtual import passed, virtual


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


@virtual
async def test_what_is_told_while_a_frame_is_dealt_with_is_handed_over_at_its_end() -> None:
    """Whoever waits finds everything done; an error is told as ever, and who gives up meanwhile is not told."""
    waiters, order = Waiters(), list[str]()

    async def wait(topic: str) -> None:
        order.append(f"{topic}: {await waiters.until(topic, 10)}")

    tasks = [asyncio.create_task(wait(topic)) for topic in ("one", "other", "failed")]
    gone = waiters.watch("gone")
    await asyncio.sleep(0)

    def frame() -> None:
        with waiters.handing_over():
            waiters.tell("one", 1)
            waiters.tell("other", 2)
            waiters.tell("gone", 3)
            waiters.tell("failed", error=ErrorInfo("AgentDiedError", "dead"))
            gone.cancel()
            order.append("all done")
        order.append("the end")

    asyncio.get_running_loop().call_soon(frame)
    *_, failed = await asyncio.gather(*tasks, return_exceptions=True)
    assert order == ["all done", "one: 1", "other: 2", "the end"]
    assert isinstance(failed, AgentDiedError)
    assert gone.cancelled()
    waiters.tell("one", 4)  # outside of such a block, in the next round
    assert waiters._topics == {}
