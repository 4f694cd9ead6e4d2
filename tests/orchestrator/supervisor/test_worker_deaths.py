"""A root whose workers do not come up, die, or say what they should not, on a clock that jumps."""

from __future__ import annotations

import asyncio
import shutil
from pathlib import Path

import pytest

from orch import ScriptedBackend
from orch.supervisor.supervisor import MOST_CALLS
from orch.testing import FakeLauncher
from orch_protocol.core.errors import AgentDiedError, AgentGoneError, LaunchError, ProtocolError, StoreError
from orch_protocol.core.messages import Reply, text_of
from orch_protocol.services.requests import RUN_TOOL, RunTool
from orch_protocol.wire.worker_messages import TurnFinished
from orch_worker.session.transcript import read_session
from orchestrator.root_double import Gate, Slow, fill, kind_of, opened
from virtual_clock import passed, until, virtual

# Launches.


@virtual
async def test_a_failed_launch_is_tried_again_then_told_and_again_after_resume(tmp_path: Path) -> None:
    """After some tries the spawner gets the reason, so does whoever asks; resume gives another chance."""
    launcher = FakeLauncher()
    launcher.failures += ["no memory"] * 4
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
        assert not world.supervisor.tree.agents.alive
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
        said = [TurnFinished(Reply("somebody", "else", "mine")), TurnFinished()]
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
        calls = [asyncio.ensure_future(host.call_root(RUN_TOOL, RunTool("gate", {}))) for _ in range(300)]
        await until(lambda: sum(call.done() for call in calls) == 300 - MOST_CALLS)
        gate.open.set()
        answers = await asyncio.gather(*calls, return_exceptions=True)
        assert sum(isinstance(answer, ProtocolError) for answer in answers) == 300 - MOST_CALLS
        assert gate.calls == MOST_CALLS
