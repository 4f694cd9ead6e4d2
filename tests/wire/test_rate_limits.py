"""Many agents of one model that takes only so many requests: nobody fails, and one refusal holds for all."""

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
    """Answers `most` requests in every `seconds`, and refuses all others until the next of them begin."""

    def __init__(self, most: int, seconds: float) -> None:
        self.refused = 0
        self._most = most
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
    """A root whose model is the server's."""
    config = Config(subagents=SubagentsConfig(max_concurrent=2 * AGENTS))
    async with AsyncOrchestrator(
        MODEL, config=config, home=tmp_path / "home", env=environment(server), **fake_world()
    ) as root:
        yield root


def waits(root: AsyncOrchestrator, agent: AsyncSubagent) -> bool:
    """Whether the agent is said to wait for its turn."""
    doing = root.supervisor.activity.get(agent.id)
    return doing is not None and "waits for its turn" in doing.detail


async def crowd(root: AsyncOrchestrator) -> list[AsyncSubagent]:
    """Spawn agents that ask the same model."""
    return [await root.spawn("work") for _ in range(AGENTS)]


async def test_a_crowd_is_served_one_after_the_other(server: ModelServer, root: AsyncOrchestrator) -> None:
    """All are answered, and nobody is refused again and again.

    Left to themselves all come back together each time: 21 are refused, then 18, then 15, and 84 in the end.
    """
    bucket = server.otherwise = Bucket(3, 0.2)
    agents = await crowd(root)
    replies = await asyncio.gather(*(agent.query("go") for agent in agents))
    assert [reply.text for reply in replies] == ["done"] * AGENTS
    assert bucket.refused <= 84 // 2
    assert len(server.requests) == AGENTS + bucket.refused


async def test_one_refusal_holds_for_all(server: ModelServer, root: AsyncOrchestrator) -> None:
    """Who begins afterwards waits, one that is only spawned then too, and says so; the time over, all go on."""
    first, second = await root.spawn("work"), await root.spawn("work")
    server.script.append(fail(429, "rate_limit_error", "one too many", retry_after_ms="400"))
    refused = asyncio.create_task(first.query("go"))
    await until(root.supervisor.lanes.names)
    late = await root.spawn("work")
    waiting = [asyncio.create_task(agent.query("go")) for agent in (second, late)]
    await until(lambda: waits(root, second))
    assert len(server.requests) == 1
    assert [reply.text for reply in await asyncio.gather(refused, *waiting)] == ["done"] * 3
    assert len(server.requests) == 4


async def test_other_models_go_on(server: ModelServer, root: AsyncOrchestrator) -> None:
    """A refusal is one model's."""
    first, other = await root.spawn("work"), await root.spawn("work", model=OTHER)
    server.script.append(fail(429, "rate_limit_error", "one too many", retry_after_ms="30000"))
    refused = asyncio.create_task(first.query("go"))
    await until(root.supervisor.lanes.names)
    assert (await other.query("go")).text == "done"
    await first.cancel()
    assert (await refused).stop_reason == "cancelled"


async def test_who_waits_can_be_cancelled(server: ModelServer, root: AsyncOrchestrator) -> None:
    """Its turn ends at once, and nobody waits for it."""
    first, second = await root.spawn("work"), await root.spawn("work")
    server.script.append(fail(429, "rate_limit_error", "one too many", retry_after_ms="30000"))
    refused = asyncio.create_task(first.query("go"))
    await until(root.supervisor.lanes.names)
    waiting = asyncio.create_task(second.query("go"))
    await until(lambda: waits(root, second))
    for agent in (first, second):
        await agent.cancel()
    assert [reply.stop_reason for reply in await asyncio.gather(refused, waiting)] == ["cancelled"] * 2
    assert len(server.requests) == 1


async def test_a_model_that_wants_to_be_left_alone_for_long(server: ModelServer, root: AsyncOrchestrator) -> None:
    """Is an error at once, for who asked; others are told by the model itself, if it still is so."""
    first, second = await root.spawn("work"), await root.spawn("work")
    server.script.append(fail(429, "rate_limit_error", "come back tomorrow", retry_after="7200"))
    with pytest.raises(RateLimitError, match="it asks to wait 7200 s"):
        await first.query("go")
    assert (await second.query("go")).text == "done"
