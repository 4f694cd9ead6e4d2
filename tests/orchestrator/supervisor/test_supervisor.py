"""Answers and who gets them, news and who is woken, and how a root closes, on a clock that jumps."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from orch import Limits
from orch.policy.caller import USER
from orch.services import call
from orch_protocol.core.errors import AgentDiedError, NoResultError, OrchError, QueryTimeoutError
from orch_protocol.core.messages import Reply
from orch_protocol.services.requests import COLLECT, QUERY, Collect, QueryAgent
from orch_worker.session.transcript import read_session
from orchestrator.root_double import NEST, Gate, World, nesting, opened
from virtual_clock import passed, until, virtual

# Answers, and who gets them.


@virtual
async def test_an_impatient_collector_does_not_change_who_gets_the_answer(tmp_path: Path) -> None:
    """The one who asked and waits gets it; it is not there for a second one."""
    gate = Gate()
    async with opened(tmp_path) as world:
        agent = await world.scripted({"tool": "gate"}, "done", tools=[gate.tool()])
        asking = asyncio.ensure_future(agent.query("go"))
        await gate.called.wait()
        assert await agent.collect(timeout=1) is None
        gate.open.set()
        assert (await asking).text == "done"
        with pytest.raises(NoResultError, match="taken by the user"):
            await agent.collect()


@virtual
async def test_an_answer_is_the_waiters_or_is_there_to_collect(tmp_path: Path) -> None:
    """Also when it comes in the very moment in which the waiter's time is over."""
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
async def test_a_repeated_query_gets_the_same_answer(tmp_path: Path) -> None:
    """A client that asks again, because it does not know what became of its request, hears the same, at once."""
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
async def test_what_a_dead_worker_waited_for_is_there_for_others(tmp_path: Path) -> None:
    """Its call ends with it: the answer of its subagent is not taken by nobody."""
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
async def test_what_a_cut_off_call_waited_for_is_there_for_others(tmp_path: Path) -> None:
    """An agent whose turn ends while it waits for its subagent takes nothing: the answer can be collected."""
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
        assert world.supervisor._calls._tasks.keys() == {child.id}
        gate.open.set()
        reply = await child.collect()
        assert reply is not None
        assert reply.text == "done"


@virtual
async def test_an_agent_that_runs_out_of_patience_leaves_its_subagent_at_work(tmp_path: Path) -> None:
    """A tool's deadline ends the waiting; the subagent's own turn goes on, and the answer is taken later."""
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
        said = [str(message) for message in read_session(Path((await parent.state()).folder)).messages]
        assert "works on" in said[2]
        assert "works on" in said[4]
        assert "(end_turn, 0 tool calls)" in said[6]
        assert "the whole answer" in said[6]
        with pytest.raises(NoResultError, match="taken by agent"):
            await child.collect()


@virtual
async def test_a_turn_that_is_waited_for_in_another_turn_ends_before_it(tmp_path: Path) -> None:
    """Nobody works on for somebody whose time is over, who has something of what there is."""
    async with opened(tmp_path, config=nesting()) as world:
        await world.scripted({"tool": "list_files"}, {"text": "late", "sleep": 100}, tools=["list_files"], name="child")
        ask = {"tool": "query_subagent", "input": {"id": "child", "prompt": "go"}}
        parent = await world.scripted(ask, "done", tools=NEST, peers=["child"], limits=Limits(turn_seconds=30))
        assert (await parent.query("go")).text == "done"
        assert 27 < asyncio.get_running_loop().time() < 30
        messages = read_session(Path((await parent.state()).folder)).messages
        assert "(timeout, 1 tool calls)" in str(messages[2])


# Waking.


@virtual
async def test_an_agent_is_woken_by_its_subagents(tmp_path: Path) -> None:
    """It ends its turn, and gets a new one when they are done, with who and how; then it collects."""
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
async def test_news_finds_its_reader_when_there_is_room(tmp_path: Path) -> None:
    """An agent that died while its subagents worked, and that nothing makes room for, is woken as soon as there is."""
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
        root.waiters.watch(f"query:{query_id}").add_done_callback(lambda _: root.ask(node, "again"))
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
async def test_who_waits_while_the_root_closes_is_told(tmp_path: Path) -> None:
    """Queries, waits and pings end with an error, not with silence."""
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
async def test_a_turn_that_finished_as_the_root_closed_has_its_reply(tmp_path: Path) -> None:
    """Its last frame was not heard any more; whoever opens the run again collects the answer."""
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
async def test_a_transcript_that_cannot_be_read_does_not_close_the_run(tmp_path: Path) -> None:
    """The other agents of the run answer; the damaged one says what is wrong when it is asked."""
    world = World(tmp_path, run="r")
    await world.start()
    agent = await world.scripted({"text": "x", "sleep": 9}, name="bad")
    await world.scripted("fine", name="good")
    agent.submit("go")
    await passed(1)
    transcript = Path((await agent.state()).folder) / "session.jsonl"
    await world.close()
    # As after a kill -9: the query is still under way, says the journal.
    journal = tmp_path / "runs" / "r" / "journal.jsonl"
    journal.write_bytes(b"".join(journal.read_bytes().splitlines(keepends=True)[:-3]))
    transcript.unlink()
    transcript.mkdir()
    async with opened(tmp_path, run="r") as reopened:
        assert (await (await reopened.get("good")).query("go")).text == "fine"
        with pytest.raises(OrchError):
            await (await reopened.get("bad")).query("go")


@virtual
async def test_collecting_while_another_collects(tmp_path: Path) -> None:
    """One of them gets the answer, the other one hears who did."""
    async with opened(tmp_path) as world:
        agent = await world.scripted({"text": "done", "sleep": 1})
        agent.submit("go")
        await passed(1)
        root = world.supervisor
        both = [call(root, USER, COLLECT, Collect(agent.id)) for _ in range(2)]
        one, other = await asyncio.gather(*both, return_exceptions=True)
        assert one.text == "done"
        assert isinstance(other, NoResultError)
