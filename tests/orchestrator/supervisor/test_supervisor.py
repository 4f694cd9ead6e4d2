"""A root on a virtual clock: which caller gets an answer, which agent is woken, and what closing does."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from orch import Limits
from orch.policy.caller import USER
from orch.services import call
from orch.tree.interface.topics import QueryTopic
from orch_protocol.core.errors import AgentDiedError, NoResultError, OrchError, QueryTimeoutError
from orch_protocol.core.messages import Reply
from orch_protocol.services.agents.query import COLLECT, QUERY, Collect, QueryAgent
from orch_worker.session.session_reader import read_session
from orchestrator.root_double import NEST, Gate, World, nesting, opened
from virtual_clock import passed, until, virtual

# Answers and their receivers.


@virtual
async def test_timed_out_collector_does_not_take_the_answer(tmp_path: Path) -> None:
    """The caller of the query gets the answer."""
    gate = Gate()
    async with opened(tmp_path) as world:
        agent = await world.scripted({"tool": "gate"}, "done", tools=[gate.tool()])
        asking = asyncio.ensure_future(agent.query("go"))
        await gate.called.wait()
        assert await agent.collect(timeout=1) is None
        gate.open.set()
        assert (await asking).text == "done"
        with pytest.raises(NoResultError, match="collected by the user"):
            await agent.collect()


@virtual
async def test_answer_goes_to_the_waiter_or_stays_collectable(tmp_path: Path) -> None:
    """No answer is lost when it arrives at the moment of the timeout."""
    async with opened(tmp_path) as world:
        agent = await world.scripted(*[{"text": "done", "sleep": 5}] * 20)
        loop = asyncio.get_running_loop()
        for early in range(20):
            started = loop.time()
            try:
                reply = await agent.query("go", timeout=5 + early * 1e-4 - 1e-3)
            except QueryTimeoutError:
                collected = await agent.collect(timeout=60)
                assert collected is not None
                reply = collected
            assert reply.text == "done"
            assert loop.time() - started < 10
            with pytest.raises(NoResultError):
                await agent.collect(timeout=0)


@virtual
async def test_repeated_query_gets_the_same_answer(tmp_path: Path) -> None:
    """Queries with the same request id get the same answer or error, and the agent runs once."""
    async with opened(tmp_path) as world:
        agent = await world.scripted("one", {"error": "RateLimitError", "message": "slow down"})
        root = world.supervisor

        async def ask(request_id: str) -> Reply:
            reply: Reply = await call(root, USER, QUERY, QueryAgent(agent.id, "go", request_id=request_id))
            return reply

        first, twin = await asyncio.gather(ask("r1"), ask("r1"))
        assert first == twin == await ask("r1")
        for _ in range(2):
            with pytest.raises(OrchError, match="slow down"):
                await ask("r2")
        assert (await agent.state()).queries == 2


@virtual
async def test_answer_awaited_by_a_dead_worker_stays_collectable(tmp_path: Path) -> None:
    """The wait ends with the process of the asking agent."""
    gate = Gate()
    async with opened(tmp_path, config=nesting()) as world:
        child = await world.scripted({"tool": "gate"}, "done", tools=[gate.tool()], name="child")
        parent = await world.scripted(
            {"tool": "query_subagent", "input": {"id": "child", "prompt": "go"}}, "asked", tools=NEST, peers=[child]
        )
        parent.submit("go")
        await gate.called.wait()
        world.launcher.worker(parent.id).die(-9)
        await until(lambda: world.status(parent) == "died")
        gate.open.set()
        reply = await child.collect()
        assert reply is not None
        assert reply.text == "done"


@virtual
async def test_answer_awaited_by_a_cancelled_call_stays_collectable(tmp_path: Path) -> None:
    """If an agent's turn ends while it waits for a subagent, the answer stays collectable."""
    gate = Gate()
    async with opened(tmp_path, config=nesting()) as world:
        child = await world.scripted({"tool": "gate"}, "done", tools=[gate.tool()], name="child")
        call = {"tool": "query_subagent", "input": {"id": "child", "prompt": "go"}}
        parent = await world.scripted(call, tools=NEST, peers=[child])
        asking = asyncio.ensure_future(parent.query("go"))
        await gate.called.wait()
        await parent.cancel()
        assert (await asking).stop_reason == "cancelled"
        await passed(1)
        assert world.supervisor._worker_requests._tasks.keys() == {child.id}
        gate.open.set()
        reply = await child.collect()
        assert reply is not None
        assert reply.text == "done"


@virtual
async def test_tool_timeout_leaves_the_subagent_running(tmp_path: Path) -> None:
    """The answer is collected later."""
    async with opened(tmp_path, config=nesting()) as world:
        child = await world.scripted({"text": "the whole answer", "sleep": 20}, name="child")
        collect = {"tool": "collect_subagent", "input": {"id": "child"}}
        parent = await world.scripted(
            {"tool": "query_subagent", "input": {"id": "child", "prompt": "go"}},
            *[collect] * 2,
            "done",
            tools=NEST,
            peers=[child],
            limits=Limits(tool_seconds=10),
        )
        assert (await parent.query("go")).text == "done"
        listed = [str(message) for message in read_session(Path((await parent.state()).folder)).messages]
        assert "works on" in listed[2]
        assert "works on" in listed[4]
        assert "(end_turn, 0 tool calls)" in listed[6]
        assert "the whole answer" in listed[6]
        with pytest.raises(NoResultError, match="collected by agent"):
            await child.collect()


@virtual
async def test_nested_turn_ends_before_the_turn_waiting_for_it(tmp_path: Path) -> None:
    """The waiting turn receives the partial answer."""
    async with opened(tmp_path, config=nesting()) as world:
        await world.scripted({"tool": "list_files"}, {"text": "late", "sleep": 100}, tools=["list_files"], name="child")
        ask = {"tool": "query_subagent", "input": {"id": "child", "prompt": "go"}}
        parent = await world.scripted(ask, "done", tools=NEST, peers=["child"], limits=Limits(turn_seconds=30))
        assert (await parent.query("go")).text == "done"
        assert 27 < asyncio.get_running_loop().time() < 30
        messages = read_session(Path((await parent.state()).folder)).messages
        assert "(timeout, 1 tool calls)" in str(messages[2])


# Wake-ups.


@virtual
async def test_agent_is_woken_when_its_subagents_finish(tmp_path: Path) -> None:
    """The agent gets a new turn with the ids of the finished subagents, and can collect their answers."""
    gate = Gate()
    async with opened(tmp_path, config=nesting()) as world:
        child = await world.scripted({"tool": "gate"}, "child's answer", tools=[gate.tool()], name="child")
        parent = await world.scripted(
            {"tool": "query_subagent", "input": {"id": "child", "prompt": "go", "wake": "all"}},
            "waiting",
            {"tool": "collect_subagent", "input": {"id": "child"}},
            {"echo": True},
            tools=[*NEST, gate.tool()],
            peers=[child],
            name="parent",
        )
        assert (await parent.query("start")).text == "waiting"
        gate.open.set()
        await until(lambda: world.supervisor.tree.agents[parent.id].queries == 2)
        reply = await parent.collect()
        assert reply is not None
        assert child.id in reply.text
        assert reply.text.startswith("[subagents finished]")
        assert reply.tool_calls == 1


@virtual
async def test_pending_wake_up_is_delivered_when_a_slot_is_free(tmp_path: Path) -> None:
    """An agent that died and finds no free slot is woken as soon as a slot is free."""
    gate = Gate()
    async with opened(tmp_path, config=nesting(max_concurrent=2)) as world:
        parent = await world.scripted("woken", tools=NEST)
        child = await world.scripted({"tool": "gate"}, "done", {"text": "more", "sleep": 99}, tools=[gate.tool()])
        root = world.supervisor
        node = root.tree.agents[child.id]
        query_id = root.ask(node, "go", asker=parent.id, wake="all")
        await gate.called.wait()
        world.launcher.worker(parent.id).die(-9)
        await until(lambda: world.status(parent) == "died")
        other = await world.scripted({"text": "busy", "sleep": 50})
        busy = other.submit("go")
        root.waiters.watch(QueryTopic(query_id)).add_done_callback(lambda _: root.ask(node, "again"))
        gate.open.set()
        await passed(20)
        assert (world.status(parent), world.status(child)) == ("died", "busy")
        await busy
        await until(lambda: root.tree.agents[parent.id].queries, 10)
        reply = await parent.collect()
        assert reply is not None
        assert reply.text == "woken"


# Closing.


@virtual
async def test_waiters_get_an_error_on_close(tmp_path: Path) -> None:
    """Queries and pings fail with an error, and `wait` returns."""
    gate = Gate()
    world = World(tmp_path)
    await world.start()
    agent = await world.scripted({"tool": "gate"}, tools=[gate.tool()])
    future, waiting = agent.submit("go"), asyncio.ensure_future(world.wait(agent))
    await gate.called.wait()
    world.lose(lambda kind: kind == "pong")
    ping = asyncio.ensure_future(agent.ping())
    await asyncio.sleep(0)
    await world.close()
    with pytest.raises(AgentDiedError, match="closed"):
        await future
    with pytest.raises(AgentDiedError, match="closed"):
        await ping
    assert (await waiting).pending == ()


@virtual
async def test_turn_finished_during_close_keeps_its_reply(tmp_path: Path) -> None:
    """The next root collects the reply from the transcript."""
    world = World(tmp_path, run="r")
    await world.start()
    agent = await world.scripted("done")
    world.lose(lambda kind: kind == "finished")
    future = agent.submit("go")
    folder = Path((await agent.state()).folder)
    await until(lambda: read_session(folder).turns)
    await world.close()
    with pytest.raises(AgentDiedError):
        await future
    async with opened(tmp_path, run="r") as reopened:
        reply = await (await reopened.get(agent.id)).collect()
        assert reply is not None
        assert reply.text == "done"


@virtual
async def test_unreadable_transcript_does_not_prevent_opening_the_run(tmp_path: Path) -> None:
    """Other agents answer. A query to the agent with the damaged transcript raises an error."""
    world = World(tmp_path, run="r")
    await world.start()
    agent = await world.scripted({"text": "x", "sleep": 9}, name="bad")
    await world.scripted("fine", name="good")
    agent.submit("go")
    await passed(1)
    transcript = Path((await agent.state()).folder) / "session.jsonl"
    await world.close()
    # As after a SIGKILL: according to the journal, the query is still pending.
    journal = tmp_path / "runs" / "r" / "journal.jsonl"
    journal.write_bytes(b"".join(journal.read_bytes().splitlines(keepends=True)[:-3]))
    transcript.unlink()
    transcript.mkdir()
    async with opened(tmp_path, run="r") as reopened:
        assert (await (await reopened.get("good")).query("go")).text == "fine"
        with pytest.raises(OrchError):
            await (await reopened.get("bad")).query("go")


@virtual
async def test_concurrent_collects_give_one_answer(tmp_path: Path) -> None:
    """The other caller gets NoResultError."""
    async with opened(tmp_path) as world:
        agent = await world.scripted({"text": "done", "sleep": 1})
        agent.submit("go")
        await passed(1)
        root = world.supervisor
        both = [call(root, USER, COLLECT, Collect(agent.id)) for _ in range(2)]
        one, other = await asyncio.gather(*both, return_exceptions=True)
        assert one.text == "done"
        assert isinstance(other, NoResultError)
