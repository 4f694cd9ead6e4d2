"""Spawns and queries that wait while the maximum number of agents is alive."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from orch import ConcurrencyLimitError, Config, QueryTimeoutError, ScriptedBackend, SubagentsConfig
from orchestrator.root_double import NEST, Gate, World, nesting, opened, queued

ONE = Config(subagents=SubagentsConfig(max_concurrent=1))
CALL = {"tool": "gate"}


async def busy(world: World, gate: Gate) -> asyncio.Task[object]:
    """Spawn an agent that works until the gate is open. Return the task of its query."""
    gate.called.clear()
    agent = await world.scripted(CALL, "done", tools=[gate.tool()])
    task = asyncio.ensure_future(agent.query("work"))
    await gate.called.wait()
    return task


async def test_a_spawn_lets_the_longest_idle_agent_go_cold(tmp_path: Path) -> None:
    """A program can spawn more agents than `max_concurrent`, and query them all afterwards."""
    async with opened(tmp_path, config=ONE) as world:
        agents = [await world.scripted(f"answer {n}") for n in range(3)]
        assert [(await agent.query("?")).text for agent in agents] == ["answer 0", "answer 1", "answer 2"]


async def test_spawns_and_queries_get_places_in_order(tmp_path: Path) -> None:
    """They wait while all agents are busy. A request that arrives later does not overtake them."""
    async with opened(tmp_path, config=ONE) as world:
        gate, done = Gate(), list[str]()
        cold = await world.scripted("cold answer")
        first = await busy(world, gate)

        async def spawn(name: str) -> None:
            await world.scripted("x", name=name)
            done.append(name)

        async def query() -> None:
            assert (await cold.query("?")).text == "cold answer"
            done.append("query")

        waiting = [await queued(world, each) for each in (spawn("a"), query(), spawn("b"))]
        assert (done, len(world.supervisor.tree.agents.alive)) == ([], 1)
        gate.open.set()
        await asyncio.gather(first, *waiting)
        assert done == ["a", "query", "b"]


async def test_a_cancelled_request_gives_its_turn_to_the_next(tmp_path: Path) -> None:
    """A spawn that was cancelled while it waited leaves no agent."""
    async with opened(tmp_path, config=ONE) as world:
        gate = Gate()
        first = await busy(world, gate)
        cancelled = await queued(world, world.scripted("x", name="cancelled"))
        following = await queued(world, world.scripted("x", name="following"))
        cancelled.cancel()
        gate.open.set()
        await asyncio.gather(first, following)
        assert [row.name for row in await world.agents(all=True)] == ["agent-1", "following"]


async def test_the_timeout_of_a_query_includes_the_wait(tmp_path: Path) -> None:
    """The error says that the prompt was not sent."""
    async with opened(tmp_path, config=ONE) as world:
        gate = Gate()
        cold = await world.scripted("x")
        first = await busy(world, gate)
        with pytest.raises(QueryTimeoutError, match=r"the query was not sent to agent 'agent-1'.*max_concurrent is 1"):
            await cold.query("?", timeout=0.01)
        gate.open.set()
        await first
        assert (await cold.query("?")).text == "x"


async def test_a_spawn_fails_if_no_agent_can_become_idle(tmp_path: Path) -> None:
    """An agent alone at the limit would wait for itself. The tool returns the error to its model."""
    async with opened(tmp_path, config=nesting(max_concurrent=1)) as world:
        call = {"tool": "spawn_subagent", "input": {"task": "help"}}
        agent = await world.scripted(call, "I did it myself", tools=NEST)
        assert (await agent.query("work")).text == "I did it myself"
        assert any("all 1 agents that are alive wait" in str(each) for each in (await agent.show()).messages)


async def test_agents_that_wait_for_each_other_do_not_wait_forever(tmp_path: Path) -> None:
    """If all agents spawn at the limit, the last one gets the error and ends its turn, and the others get places."""
    async with opened(tmp_path, config=nesting(max_concurrent=2)) as world:
        call = {"tool": "spawn_subagent", "input": {"task": "help"}}
        agents = [await world.scripted(call, f"done {n}", tools=NEST) for n in range(2)]
        replies = await asyncio.wait_for(asyncio.gather(*(agent.query("work") for agent in agents)), 20)
        assert [reply.text for reply in replies] == ["done 0", "done 1"]
        assert len(await world.agents()) == 3


async def test_a_full_table_of_descriptors_does_not_wait(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Only the limit `max_concurrent` makes a spawn wait; other limits raise their error at once."""
    async with opened(tmp_path, config=ONE) as world:

        def refuse() -> None:
            raise ConcurrencyLimitError("too few file descriptors")

        monkeypatch.setattr(world.supervisor.workers, "require_room", refuse)
        with pytest.raises(ConcurrencyLimitError, match="too few file descriptors"):
            await world.spawn("x", backend=ScriptedBackend(["x"]))


async def test_submitted_queries_wait_for_a_place(tmp_path: Path) -> None:
    """The future of a waiting query resolves after an agent becomes idle. Cancelling the future withdraws the query."""
    async with opened(tmp_path, config=ONE) as world:
        gate = Gate()
        cold, withdrawn = await world.scripted("late answer"), await world.scripted("x")
        first = await busy(world, gate)
        reply, other = cold.submit("?"), withdrawn.submit("?")
        await asyncio.sleep(0)
        other.cancel()
        assert len(world.supervisor.tree.agents.alive) == 1
        gate.open.set()
        assert (await reply).text == "late answer"
        await first
        assert (await withdrawn.state()).queries == 0
