"""A root with agents on the test's own loop: faults, races and deadlines, on a clock that jumps."""

from __future__ import annotations

import asyncio
import random
import shutil
from pathlib import Path
from typing import Any

import msgspec
import pytest

from orch import Limits, ScriptedBackend
from orch.launchers.base import LaunchRequest
from orch.services import call
from orch.supervisor import MOST_CALLS
from orch.testing import FakeLauncher, FakeWorker
from orch_protocol.commands import Finished
from orch_protocol.errors import (
    AgentDiedError,
    AgentGoneError,
    LaunchError,
    NoResultError,
    OrchError,
    ProtocolError,
    QueryTimeoutError,
    StoreError,
)
from orch_protocol.messages import Reply, text_of, user
from orch_protocol.services import Collect, QueryAgent, RunTool
from orch_protocol.wire import MAX_BODY
from orch_worker.transcript import read_session
from orchestrator.world import NEST, Gate, World, fill, kind_of, nesting, opened
from virtual import passed, until, virtual

# Frames that are lost.


@pytest.mark.parametrize(
    "kind", ["hello", "init", "ready", "query", "finished", "root_call", "root_reply", "ack", "progress"]
)
@pytest.mark.parametrize("times", [1, 3])
@virtual
async def test_a_conversation_survives_the_loss_of_a_frame(tmp_path: Path, kind: str, times: int) -> None:
    """Whatever is lost comes again, and nothing happens twice."""
    lost: list[str] = []
    calls: list[str] = []

    async def note(word: str) -> str:
        """Note a word."""
        calls.append(word)
        return f"noted {word}"

    def lose(found: str) -> bool:
        if found == kind and len(lost) < times:
            lost.append(found)
            return True
        return False

    async with opened(tmp_path) as world:
        world.lose(lose)
        agent = await world.scripted({"tool": "note", "input": {"word": "x"}}, "one", "two", tools=[note])
        first, second = await agent.query("first"), await agent.query("second")
        assert (first.text, first.tool_calls, second.text) == ("one", 1, "two")
        assert calls == ["x"]
        session = read_session(Path((await agent.state()).folder))
        assert [text_of(message) for message in session.messages if message.role == "assistant"] == ["", "one", "two"]
    if kind != "progress":
        assert len(lost) in (times, 1)


@pytest.mark.parametrize("seed", range(8))
@virtual
async def test_conversations_survive_a_line_that_loses_a_third_of_everything(tmp_path: Path, seed: int) -> None:
    """Each of many questions is answered once, each tool runs once."""
    luck = random.Random(seed)
    calls: list[int] = []

    async def count(number: int) -> str:
        """Count."""
        calls.append(number)
        return "counted"

    items = [item for number in range(6) for item in ({"tool": "count", "input": {"number": number}}, f"{number}")]
    async with opened(tmp_path) as world:
        world.lose(lambda _: luck.random() < 0.33)
        agent = await world.scripted(*items, tools=[count])
        for number in range(6):
            assert (await agent.query(f"number {number}")).text == f"{number}"
        assert calls == list(range(6))


def big(what: str) -> dict[str, Any]:
    """Return what makes the body of a `what` frame larger than a frame may be."""
    text = "x" * (MAX_BODY + 1)
    return {
        "init": {"history": [user(text)]},
        "root_call": {"items": [{"tool": "note", "input": {"word": text}}, "done"]},
        "finished": {"items": [text], "limits": Limits(reply_tokens=MAX_BODY)},
        "query": {},
    }[what]


@pytest.mark.parametrize("kind", ["query", "root_call", "finished"])
@virtual
async def test_a_large_body_that_is_lost_on_its_way_is_told(tmp_path: Path, kind: str) -> None:
    """The file it travelled in is gone when the frame arrives: nobody waits for it, and the agent goes on."""

    async def note(word: str) -> str:
        """Note a word."""
        return word

    async with opened(tmp_path) as world:
        agent = await world.scripted(**({"tools": [note], "items": ["done"]} | big(kind)))
        world.spoil(kind)
        started = asyncio.get_running_loop().time()
        asked = agent.query("x" * (MAX_BODY + 1) if kind == "query" else "go")
        if kind == "query":
            with pytest.raises(ProtocolError, match="cannot be read"):
                await asked
        elif kind == "finished":
            assert len((await asked).text) == MAX_BODY + 1
        else:
            assert (await asked).text == "done"
            messages = read_session(Path((await agent.state()).folder)).messages
            assert "cannot be read" in str([block for message in messages for block in message.content])
        assert asyncio.get_running_loop().time() - started < 10
        assert world.status(agent) == "idle"


@virtual
async def test_a_spec_that_is_lost_on_its_way_fails_the_launch(tmp_path: Path) -> None:
    """At once, and with the reason."""
    async with opened(tmp_path) as world:
        world.spoil("init")
        with pytest.raises(LaunchError, match="cannot be read"):
            await world.scripted(**big("init"))
        assert asyncio.get_running_loop().time() < 5


@virtual
async def test_a_spec_that_cannot_be_handed_over_fails_the_launch(tmp_path: Path) -> None:
    """The worker does not wait for a word that will never come."""
    async with opened(tmp_path) as world:
        spool = world.supervisor.workers.spool
        spool.rmdir()
        spool.write_text("in the way")
        with pytest.raises(LaunchError, match="cannot be spilled"):
            await world.scripted(**big("init"))
        assert asyncio.get_running_loop().time() < 5
        spool.unlink()


@virtual
async def test_what_cannot_be_said_now_is_said_to_the_next_process(tmp_path: Path) -> None:
    """A large word that cannot be handed over keeps no query waiting, and is not forgotten."""
    async with opened(tmp_path) as world:
        agent = await world.scripted("one", "two")
        world.launcher.worker(agent.id).die(-9)
        await until(lambda: world.status(agent) == "died")
        await agent.steer("x" * (MAX_BODY + 1))
        spool = world.supervisor.workers.spool
        spool.rmdir()
        spool.write_text("in the way")
        assert (await agent.query("first")).text == "one"
        spool.unlink()
        world.launcher.worker(agent.id).die(-9)
        await until(lambda: world.status(agent) == "died")
        assert (await agent.query("second")).text == "two"
        assert "xxx" in str(read_session(Path((await agent.state()).folder)).messages[-2])
        assert world.supervisor.tree.nodes[agent.id].unheard == {}


# Disks that are full.


@virtual
async def test_a_full_disk_refuses_requests_and_loses_no_fact(tmp_path: Path) -> None:
    """What was under way is finished and answered; what happened is written when there is room."""
    gate = Gate()
    async with opened(tmp_path) as world:
        agent = await world.scripted({"tool": "gate"}, "done", "again", tools=[gate.tool()])
        other = await world.scripted("fine")
        future = agent.submit("go")
        await gate.called.wait()
        make_room = world.fill_disk()
        for attempt in (world.scripted(), other.query("you?")):
            with pytest.raises(StoreError, match="disk full"):
                await attempt
        gate.open.set()
        assert (await future).text == "done"
        world.launcher.worker(other.id).die(-9)
        await passed(1)
        assert (await other.state()).status == "died"
        with pytest.raises(StoreError, match="disk full"):
            await agent.collect()
        make_room()
        reply = await agent.collect()
        assert reply is not None
        assert reply.text == "done"
        assert (await other.query("you?")).text == "fine"


@virtual
async def test_agents_are_killed_on_a_full_disk(tmp_path: Path) -> None:
    """The process ends, and whoever killed it hears that it is not on record yet."""
    async with opened(tmp_path) as world:
        agent = await world.scripted()
        make_room = world.fill_disk()
        with pytest.raises(StoreError, match=r"killed .* not on record.*disk full"):
            await agent.kill()
        assert (await agent.state()).status == "killed"
        assert world.launcher.worker(agent.id).ended.done()
        make_room()
        await world.scripted()


@virtual
async def test_an_agent_whose_launch_fails_on_a_full_disk_has_failed(tmp_path: Path) -> None:
    """Its spawner is told at once."""
    launcher = Slow()
    async with opened(tmp_path, launcher=launcher) as world:
        spawning = asyncio.ensure_future(world.scripted())
        await launcher.asked.wait()
        make_room = world.fill_disk()
        launcher.failures.append("no memory")
        launcher.go.set()
        with pytest.raises(LaunchError, match="no memory"):
            await spawning
        make_room()
        await world.scripted()


@virtual
async def test_a_prompt_that_cannot_be_handed_over_fails_its_query(tmp_path: Path) -> None:
    """A large prompt goes through a file; when that cannot be written the agent is free again at once."""
    async with opened(tmp_path) as world:
        agent = await world.scripted("fine")
        spool = world.supervisor.workers.spool
        spool.rmdir()
        spool.write_text("in the way")
        with pytest.raises(StoreError, match="spill"):
            await agent.query("x" * (MAX_BODY + 1))
        assert (await agent.state()).status == "idle"
        spool.unlink()
        assert (await agent.query("x" * (MAX_BODY + 1))).text == "fine"


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
            reply: Reply = await call(root, None, "query", QueryAgent(agent.id, "go", request_id=request_id))
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
            {"tool": "query_subagent", "input": {"id": "child", "prompt": "go"}}, "asked", tools=NEST
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
        parent = await world.scripted(call, tools=NEST)
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
        parent = await world.scripted(ask, "done", tools=NEST, limits=Limits(turn_seconds=30))
        assert (await parent.query("go")).text == "done"
        assert 27 < asyncio.get_running_loop().time() < 30
        messages = read_session(Path((await parent.state()).folder)).messages
        assert "(timeout, 1 tool calls)" in str(messages[2])


# Launches.


class Slow(FakeLauncher):
    """A launcher that launches when it may."""

    def __init__(self) -> None:
        super().__init__()
        self.asked = asyncio.Event()
        self.go = asyncio.Event()

    async def launch(self, request: LaunchRequest) -> FakeWorker:
        """Return a worker, when `go` is set."""
        self.asked.set()
        await self.go.wait()
        return await super().launch(request)


@virtual
async def test_a_failed_launch_is_told_and_tried_again_after_resume(tmp_path: Path) -> None:
    """The spawner gets the reason, so does whoever asks; resume gives another chance."""
    launcher = FakeLauncher()
    launcher.failures.append("no memory")
    async with opened(tmp_path, launcher=launcher) as world:
        with pytest.raises(LaunchError, match="no memory"):
            await world.scripted("fine", name="x")
        agent = await world.get("x")
        assert (await agent.state()).status == "failed"
        with pytest.raises(AgentGoneError, match="no memory"):
            await agent.query("go")
        await agent.resume()
        assert (await agent.query("go")).text == "fine"


@virtual
async def test_an_agent_killed_as_it_is_launched_is_gone_at_once(tmp_path: Path) -> None:
    """The launch is called off, also one that did not begin yet, and nothing comes of it later."""
    launcher = Slow()
    async with opened(tmp_path, launcher=launcher) as world:
        for begun in (True, False):
            spawning = asyncio.ensure_future(world.scripted(name="x"))
            if begun:
                await launcher.asked.wait()
            else:
                await asyncio.sleep(0)
            started = asyncio.get_running_loop().time()
            assert len(await world.kill("x")) == 1
            assert asyncio.get_running_loop().time() - started < 0.01
            with pytest.raises(AgentGoneError, match="as it started"):
                await spawning
        launcher.go.set()
        await passed(1)
        assert launcher.workers == []
        assert {row.status for row in await world.agents(all=True)} == {"killed"}


@virtual
async def test_a_launch_without_end_is_called_off(tmp_path: Path) -> None:
    """The agent has failed, its room is free, and nothing comes of it later."""
    launcher = Slow()
    async with opened(tmp_path, launcher=launcher) as world:
        with pytest.raises(LaunchError, match="no process in time"):
            await world.scripted(name="x")
        assert not world.supervisor.tree.nodes.alive
        launcher.go.set()
        await passed(1)
        assert launcher.workers == []


@virtual
async def test_a_process_that_never_gets_ready_is_ended(tmp_path: Path) -> None:
    """Its spawner hears of it, and it is not left behind."""
    async with opened(tmp_path) as world:
        world.lose(lambda kind: kind == "ready")
        with pytest.raises(LaunchError, match="did not come up"):
            await world.scripted()
        assert [worker.ended.done() for worker in world.launcher.workers] == [True]


# Deaths.


@virtual
async def test_a_reply_on_disk_outlives_its_process(tmp_path: Path) -> None:
    """The frame that carried it was lost with the process; the transcript has it."""
    async with opened(tmp_path) as world:
        agent = await world.scripted("done", "more")
        world.lose(lambda kind: kind == "finished")
        asking = asyncio.ensure_future(agent.query("go"))
        folder = Path((await agent.state()).folder)
        await until(lambda: read_session(folder).turns)
        world.launcher.worker(agent.id).die(-9)
        assert (await asking).text == "done"
        world.lose(lambda _: False)
        assert (await agent.query("more?")).text == "more"


@virtual
async def test_a_last_word_that_comes_after_the_death_is_heard(tmp_path: Path) -> None:
    """It settles the query and the death at once, so that the next query starts the next process."""
    async with opened(tmp_path) as world:
        agent = await world.scripted("done", "more")
        held: list[tuple[bytes, bytes]] = []
        board = world.launcher.board
        assert board is not None
        accept = board.peers.accept
        board.peers.accept = lambda ident, data, _: held.append((ident, data))  # type: ignore[method-assign,misc]
        asking = asyncio.ensure_future(agent.query("go"))
        await until(lambda: "finished" in [kind_of(data) for _, data in held])
        worker = world.launcher.worker(agent.id)
        worker.die(-9)
        await worker.ended
        board.peers.accept = accept  # type: ignore[method-assign]
        for ident, data in held:
            accept(ident, data, worker.pid)
        assert (await agent.state()).status == "died"
        assert (await asking).text == "done"
        for ident, data in held:
            accept(ident, data, worker.pid)
        assert world.supervisor.counters["unknown_peer"] == len(held)
        assert (await agent.query("more?")).text == "more"


@virtual
async def test_a_turn_that_does_not_end_is_ended(tmp_path: Path) -> None:
    """Some time after the turn's own limit its process is killed, and the query is over."""
    async with opened(tmp_path) as world:
        agent = await world.scripted("done", "more")
        world.lose(lambda kind: kind == "finished")
        assert (await agent.query("go")).text == "done"
        assert world.status(agent) == "died"
        world.lose(lambda kind: kind == "query")
        with pytest.raises(AgentDiedError, match="did not end when its time was over"):
            await agent.submit("more?")
        world.lose(lambda _: False)
        assert (await agent.query("more?")).text == "more"


@virtual
async def test_a_first_prompt_that_could_not_be_recorded_is_no_first_prompt(tmp_path: Path) -> None:
    """On a full disk nothing is said to the model; when there is room it hears its task."""
    async with opened(tmp_path) as world:
        agent = await world.spawn("mind the gap", backend=ScriptedBackend(["fine"]))
        runtime = world.launcher.worker(agent.id)._host._runtime
        assert runtime is not None
        make_room = fill(runtime.transcript.log)
        with pytest.raises(StoreError, match="disk full"):
            await agent.query("first")
        make_room()
        await agent.query("second")
        [prompt, _] = read_session(Path((await agent.state()).folder)).messages
        assert "mind the gap" in text_of(prompt)
        assert text_of(prompt).endswith("second")


@virtual
async def test_a_worker_that_cannot_leave_well_leaves(tmp_path: Path) -> None:
    """What its transcript says when it is closed keeps no line open and no launcher waiting."""
    async with opened(tmp_path) as world:
        agent = await world.scripted("one", "two")
        worker = world.launcher.worker(agent.id)
        runtime = worker._host._runtime
        assert runtime is not None

        def refuse() -> None:
            transcript.close()
            raise StoreError("cannot sync")

        transcript = runtime.transcript
        vars(runtime)["close"] = refuse
        worker.die(3)
        assert await worker.ended == 3
        await until(lambda: world.status(agent) == "died")
        assert (await agent.query("go")).text == "one"


@virtual
async def test_who_asks_an_agent_that_forgot_everything_is_told(tmp_path: Path) -> None:
    """Once, with the first answer after its session folder was deleted; the agent goes on with its task."""
    async with opened(tmp_path) as world:
        agent = await world.scripted("one", "again", "and again")
        assert (await agent.query("go")).warning == ""
        world.launcher.worker(agent.id).die(9)
        await until(lambda: world.status(agent) == "died")
        shutil.rmtree((await agent.state()).folder)
        reply = await agent.query("what did I ask?")
        assert reply.warning == "its transcript is gone: it remembers nothing of what it was asked before"
        again = await agent.collect(again=True)
        assert again is not None
        assert again.warning == reply.warning
        assert (await agent.query("and now?")).warning == ""


# Workers that are not what they should be.


@virtual
async def test_an_answer_is_whose_line_it_came_through(tmp_path: Path) -> None:
    """Whatever a worker says whose reply it is; one that says nothing at all has failed."""
    async with opened(tmp_path) as world:
        agent = await world.scripted("fine", "fine")
        host = world.launcher.worker(agent.id)._host
        said = [Finished(Reply("somebody", "else", "mine")), Finished()]
        host._finish = lambda id, _: host._courier.send("finished", said.pop(0), id)  # type: ignore[method-assign]
        reply = await agent.query("go")
        assert (reply.id, reply.text) == (agent.id, "mine")
        assert await agent.collect(again=True) == reply
        with pytest.raises(ProtocolError, match="neither reply nor error"):
            await agent.query("go")


@virtual
async def test_a_worker_that_asks_too_much_at_once_is_told(tmp_path: Path) -> None:
    """What is under way goes on, the rest is refused."""
    gate = Gate()
    async with opened(tmp_path) as world:
        agent = await world.scripted("fine", tools=[gate.tool()])
        host = world.launcher.worker(agent.id)._host
        calls = [asyncio.ensure_future(host.call_root("run_tool", RunTool("gate", {}))) for _ in range(300)]
        await until(lambda: sum(call.done() for call in calls) == 300 - MOST_CALLS)
        gate.open.set()
        answers = await asyncio.gather(*calls, return_exceptions=True)
        assert sum(isinstance(answer, ProtocolError) for answer in answers) == 300 - MOST_CALLS
        assert gate.calls == MOST_CALLS


# Waking.


@virtual
async def test_an_agent_is_woken_by_its_subagents(tmp_path: Path) -> None:
    """It ends its turn, and gets a new one when they are done, with who and how; then it collects."""
    gate = Gate()
    async with opened(tmp_path, config=nesting()) as world:
        parent = await world.scripted(
            {"tool": "query_subagent", "input": {"id": "child", "prompt": "go", "wake": "all"}},
            "waiting",
            {"tool": "collect_subagent", "input": {"id": "child"}},
            {"echo": True},
            tools=[*NEST, gate.tool()],
            name="parent",
        )
        tree = world.supervisor.tree
        child = await world.scripted({"tool": "gate"}, "child's answer", tools=[gate.tool()], name="child")
        tree.nodes[parent.id].children.append(child.id)
        tree.nodes[child.id].spec = msgspec.structs.replace(tree.nodes[child.id].spec, parent_id=parent.id)
        assert (await parent.query("start")).text == "waiting"
        gate.open.set()
        await until(lambda: world.supervisor.tree.nodes[parent.id].queries == 2)
        reply = await parent.collect()
        assert reply is not None
        assert child.id in reply.text
        assert reply.text.startswith("[subagents finished]")
        assert reply.tool_calls == 1
        tree.nodes[parent.id].children.clear()
        tree.nodes[child.id].spec = msgspec.structs.replace(tree.nodes[child.id].spec, parent_id=None)


@virtual
async def test_news_finds_its_reader_when_there_is_room(tmp_path: Path) -> None:
    """An agent that died while its subagents worked, and that nothing makes room for, is woken as soon as there is."""
    gate = Gate()
    async with opened(tmp_path, config=nesting(max_concurrent=2)) as world:
        parent = await world.scripted("woken", tools=NEST)
        child = await world.scripted({"tool": "gate"}, "done", {"text": "more", "sleep": 99}, tools=[gate.tool()])
        root = world.supervisor
        node = root.tree.nodes[child.id]
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
        await until(lambda: root.tree.nodes[parent.id].queries, 10)
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
        both = [call(root, None, "collect", Collect(agent.id)) for _ in range(2)]
        one, other = await asyncio.gather(*both, return_exceptions=True)
        assert one.text == "done"
        assert isinstance(other, NoResultError)
