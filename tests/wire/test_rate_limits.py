"""Many agents with one rate-limited model: all get answers, and all wait after one refusal."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from orch import AsyncOrchestrator, AsyncSubagent, Config, SubagentsConfig
from orch.testing import fake_world
from orch_protocol.core.errors import RateLimitError
from virtual_clock import until
from wire.model_server import Answer, ModelServer, Request, fail, say
from wire.test_end_to_end import MODEL, environment

AGENTS = 24
OTHER = "openai:gpt-5.5"


class Bucket:
    """A model that answers `limit` requests in each period of `seconds`, and refuses further requests in the period."""

    def __init__(self, limit: int, seconds: float) -> None:
        self.refused = 0
        self._most = limit
        self._seconds = seconds
        self._begun = self._answered = 0.0

    def __call__(self, _: Request) -> Answer:
        now = asyncio.get_running_loop().time()
        if now >= self._begun + self._seconds:
            self._begun, self._answered = now, 0
        if self._answered < self._most:
            self._answered += 1
            return say("done")
        self.refused += 1
        return fail(429, "rate_limit_error", "no", retry_after_ms=f"{1000 * (self._begun + self._seconds - now):.0f}")


@pytest.fixture
async def root(server: ModelServer, tmp_path: Path) -> AsyncIterator[AsyncOrchestrator]:
    """A root whose model is at `server`."""
    config = Config(subagents=SubagentsConfig(max_concurrent=2 * AGENTS))
    async with AsyncOrchestrator(
        MODEL, config=config, home=tmp_path / "home", env=environment(server), **fake_world()
    ) as root:
        yield root


def waits(root: AsyncOrchestrator, agent: AsyncSubagent) -> bool:
    """Return whether the activity of the agent states that the agent waits for its turn."""
    doing = root.supervisor.activity.get(agent.id)
    return doing is not None and "waits for its turn" in doing.detail


async def crowd(root: AsyncOrchestrator) -> list[AsyncSubagent]:
    """Spawn AGENTS agents with the same model, and return them."""
    return [await root.spawn("work") for _ in range(AGENTS)]


async def test_rate_limited_agents_are_admitted_one_after_another(server: ModelServer, root: AsyncOrchestrator) -> None:
    """All agents get answers, with few refusals.

    Agents that retry independently would all come back at the same time: 21 are refused, then 18, then 15, and 84 in
    total.
    """
    bucket = server.otherwise = Bucket(3, 0.2)
    agents = await crowd(root)
    replies = await asyncio.gather(*(agent.query("go") for agent in agents))
    assert [reply.text for reply in replies] == ["done"] * AGENTS
    assert bucket.refused <= 84 // 2
    assert len(server.requests) == AGENTS + bucket.refused


async def test_one_rate_limit_holds_for_all_agents(server: ModelServer, root: AsyncOrchestrator) -> None:
    """After one refusal, other agents of the model send no request, and report that they wait. Then all get answers."""
    first, second = await root.spawn("work"), await root.spawn("work")
    server.script.append(fail(429, "rate_limit_error", "one too many", retry_after_ms="400"))
    refused = asyncio.create_task(first.query("go"))
    await until(root.supervisor.rate_limiter.names)
    late = await root.spawn("work")
    waiting = [asyncio.create_task(agent.query("go")) for agent in (second, late)]
    await until(lambda: waits(root, second))
    assert len(server.requests) == 1
    assert [reply.text for reply in await asyncio.gather(refused, *waiting)] == ["done"] * 3
    assert len(server.requests) == 4


async def test_rate_limit_does_not_affect_other_models(server: ModelServer, root: AsyncOrchestrator) -> None:
    """While one model has a rate limit, another model answers."""
    first, other = await root.spawn("work"), await root.spawn("work", model=OTHER)
    server.script.append(fail(429, "rate_limit_error", "one too many", retry_after_ms="30000"))
    refused = asyncio.create_task(first.query("go"))
    await until(root.supervisor.rate_limiter.names)
    assert (await other.query("go")).text == "done"
    await first.cancel()
    assert (await refused).stop_reason == "cancelled"


async def test_wait_for_a_rate_limit_can_be_cancelled(server: ModelServer, root: AsyncOrchestrator) -> None:
    """A cancel ends the turn of a waiting agent without a further request."""
    first, second = await root.spawn("work"), await root.spawn("work")
    server.script.append(fail(429, "rate_limit_error", "one too many", retry_after_ms="30000"))
    refused = asyncio.create_task(first.query("go"))
    await until(root.supervisor.rate_limiter.names)
    waiting = asyncio.create_task(second.query("go"))
    await until(lambda: waits(root, second))
    for agent in (first, second):
        await agent.cancel()
    assert [reply.stop_reason for reply in await asyncio.gather(refused, waiting)] == ["cancelled"] * 2
    assert len(server.requests) == 1


async def test_long_rate_limit_is_an_error_for_its_caller(server: ModelServer, root: AsyncOrchestrator) -> None:
    """If the requested wait is too long, the query fails, and the query of another agent is sent."""
    first, second = await root.spawn("work"), await root.spawn("work")
    server.script.append(fail(429, "rate_limit_error", "come back tomorrow", retry_after="7200"))
    with pytest.raises(RateLimitError, match="it asks to wait 7200 s"):
        await first.query("go")
    assert (await second.query("go")).text == "done"
