"""Agents that are killed, canceled or stopped while their start or their first query waits for its admission."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from orch import AsyncOrchestrator, AsyncSubagent, OrchError, Reply, ScriptedBackend
from orch.processes import workers

COUNT = 8


@pytest.fixture
async def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[AsyncOrchestrator]:
    """A root with real processes that admits one step of one worker at a time."""
    monkeypatch.setattr(workers, "admitted_at_once", lambda: 1)
    async with AsyncOrchestrator("extractive:", home=tmp_path) as root:
        yield root


def spawn(root: AsyncOrchestrator, number: int) -> asyncio.Future[AsyncSubagent]:
    """Start an agent that answers with its number."""
    return asyncio.ensure_future(root.spawn("x", name=f"a{number}", backend=ScriptedBackend([str(number)] * 2)))


async def test_agents_are_killed_while_their_start_waits(root: AsyncOrchestrator) -> None:
    """Their spawns fail at once, nothing of them starts, and the others answer."""
    spawns = [spawn(root, number) for number in range(COUNT)]
    while len(await root.agents()) < COUNT:  # noqa: ASYNC110 - the state of the root, which has no event for it
        await asyncio.sleep(0)
    killed, kept = spawns[1::2], spawns[::2]
    assert len(await root.kill(*(f"a{number}" for number in range(1, COUNT, 2)))) == len(killed)
    failures = await asyncio.gather(*killed, return_exceptions=True)
    assert all(isinstance(failure, OrchError) for failure in failures)
    replies = await asyncio.gather(*[(await agent).query("go") for agent in kept])
    assert [reply.text for reply in replies] == [str(number) for number in range(0, COUNT, 2)]


async def test_first_queries_end_in_each_way_while_they_wait(root: AsyncOrchestrator) -> None:
    """A canceled query, a killed agent and an abandoned query do not stop the other queries."""
    agents = await asyncio.gather(*(spawn(root, number) for number in range(COUNT)))
    queries = [asyncio.ensure_future(agent.query("go")) for agent in agents]
    await asyncio.sleep(0)
    await agents[3].cancel()
    await agents[4].kill()
    queries[5].cancel()
    results = await asyncio.gather(*queries, return_exceptions=True)
    assert [str(n) for n in (0, 1, 2, 6, 7)] == [
        r.text for n, r in enumerate(results) if n not in (3, 4, 5) and isinstance(r, Reply)
    ]
    assert isinstance(results[4], OrchError)
    assert isinstance(results[5], asyncio.CancelledError)
    assert isinstance(results[3], Reply), "the cancellation reached the worker after the query"
    assert (await agents[3].query("again")).stop_reason == "end_turn"


async def test_time_limit_of_a_query_includes_its_wait(root: AsyncOrchestrator) -> None:
    """The caller gets its timeout, and the agent keeps the query."""
    agents = await asyncio.gather(*(spawn(root, number) for number in range(3)))
    queries = [asyncio.ensure_future(agent.query("go")) for agent in agents[:2]]
    await asyncio.sleep(0)
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0):
            await agents[2].query("go")
    assert [reply.text for reply in await asyncio.gather(*queries)] == ["0", "1"]
    reply = await agents[2].collect(timeout=60)
    assert reply is None or reply.text == "2"
