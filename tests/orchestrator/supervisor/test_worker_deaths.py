"""A root whose workers fail to start, die or send invalid messages, on a virtual clock."""

from __future__ import annotations

import asyncio
import shutil
from pathlib import Path

import pytest

from orch import ScriptedBackend
from orch.supervisor.supervisor import MAX_CALLS
from orch.testing import FakeLauncher
from orch_protocol.core.errors import AgentDiedError, AgentGoneError, LaunchError, ProtocolError, StoreError
from orch_protocol.core.messages import Reply, text_of
from orch_protocol.services.resources.tools import RUN_TOOL, RunTool
from orch_protocol.wire.worker_messages import TurnFinished
from orch_worker.session.session_reader import read_session
from orchestrator.root_double import Gate, Slow, fill, kind_of, opened
from virtual_clock import passed, until, virtual

# Launches.


@virtual
async def test_failed_launch_is_retried_and_reported(tmp_path: Path) -> None:
    """After several failures, the spawn raises LaunchError, and `resume` tries again."""
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
async def test_kill_during_launch_cancels_the_launch(tmp_path: Path) -> None:
    """A launch that has not begun is cancelled, too. No process starts later."""
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
            with pytest.raises(AgentGoneError, match="while it started"):
                await spawning
        launcher.go.set()
        await passed(1)
        assert launcher.workers == []
        assert {row.status for row in await world.agents(all=True)} == {"killed"}


@virtual
async def test_launch_times_out(tmp_path: Path) -> None:
    """The spawn raises LaunchError, and the slot is free."""
    launcher = Slow()
    async with opened(tmp_path, launcher=launcher) as world:
        with pytest.raises(LaunchError, match="no process was started within"):
            await world.scripted(name="x")
        assert not world.supervisor.tree.agents.alive
        launcher.go.set()
        await passed(1)
        assert launcher.workers == []


@virtual
async def test_worker_that_never_gets_ready_is_ended(tmp_path: Path) -> None:
    """The spawn raises LaunchError, and the process ends."""
    async with opened(tmp_path) as world:
        world.lose(lambda kind: kind == "ready")
        with pytest.raises(LaunchError, match="did not start"):
            await world.scripted()
        assert [worker.ended.done() for worker in world.launcher.workers] == [True]


# Deaths.


@virtual
async def test_reply_on_disk_outlives_its_process(tmp_path: Path) -> None:
    """If the frame with the reply is lost with the process, the root reads the reply from the transcript."""
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
async def test_reply_frame_after_the_exit_is_used(tmp_path: Path) -> None:
    """The frame answers the query and ends the wait for the process, so the next query starts a new process."""
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
async def test_worker_is_killed_after_the_turns_time_limit(tmp_path: Path) -> None:
    """After an additional delay, the root kills the process, and the query ends."""
    async with opened(tmp_path) as world:
        agent = await world.scripted("done", "more")
        world.lose(lambda kind: kind == "finished")
        assert (await agent.query("go")).text == "done"
        assert world.status(agent) == "died"
        world.lose(lambda kind: kind == "query")
        with pytest.raises(AgentDiedError, match="did not end within the time limit"):
            await agent.submit("more?")
        world.lose(lambda _: False)
        assert (await agent.query("more?")).text == "more"


@virtual
async def test_unrecorded_first_prompt_is_not_sent(tmp_path: Path) -> None:
    """The task of the spawn is part of the next prompt instead."""
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
async def test_failed_shutdown_of_a_worker_closes_its_connection(tmp_path: Path) -> None:
    """An error while the transcript is closed does not keep the connection open."""
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
async def test_deleted_session_folder_is_reported_once(tmp_path: Path) -> None:
    """The first answer after the deletion has the warning. Later answers have none."""
    async with opened(tmp_path) as world:
        agent = await world.scripted("one", "again", "and again")
        assert (await agent.query("go")).warning == ""
        world.launcher.worker(agent.id).die(9)
        await until(lambda: world.status(agent) == "died")
        shutil.rmtree((await agent.state()).folder)
        reply = await agent.query("what did I ask?")
        assert reply.warning == "the transcript is missing, so the agent has no memory of earlier queries"
        again = await agent.collect(again=True)
        assert again is not None
        assert again.warning == reply.warning
        assert (await agent.query("and now?")).warning == ""


# Workers that send invalid messages.


@virtual
async def test_answer_is_attributed_to_the_connection(tmp_path: Path) -> None:
    """An agent id in the message has no effect. A message without a reply or an error fails the query."""
    async with opened(tmp_path) as world:
        agent = await world.scripted("fine", "fine")
        host = world.launcher.worker(agent.id)._host
        found = [TurnFinished(Reply("another", "agent", "mine")), TurnFinished()]
        host._finish = lambda id, _: host._channel.send("finished", found.pop(0), id)  # type: ignore[method-assign]
        reply = await agent.query("go")
        assert (reply.id, reply.text) == (agent.id, "mine")
        assert await agent.collect(again=True) == reply
        with pytest.raises(ProtocolError, match="without a reply or an error"):
            await agent.query("go")


@virtual
async def test_concurrent_requests_of_a_worker_are_bounded(tmp_path: Path) -> None:
    """Pending requests continue, and further requests are refused."""
    gate = Gate()
    async with opened(tmp_path) as world:
        agent = await world.scripted("fine", tools=[gate.tool()])
        host = world.launcher.worker(agent.id)._host
        calls = [asyncio.ensure_future(host.call_root(RUN_TOOL, RunTool("gate", {}))) for _ in range(300)]
        await until(lambda: sum(call.done() for call in calls) == 300 - MAX_CALLS)
        gate.open.set()
        answers = await asyncio.gather(*calls, return_exceptions=True)
        assert sum(isinstance(answer, ProtocolError) for answer in answers) == 300 - MAX_CALLS
        assert gate.calls == MAX_CALLS
