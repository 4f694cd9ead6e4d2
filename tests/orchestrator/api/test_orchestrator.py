"""A root and its agents: start, close, failures of both, and queued and submitted queries."""

from __future__ import annotations

import asyncio
import io
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from orch import AsyncOrchestrator
from orch.testing import FakeLauncher, fake_world
from orch_protocol.core.errors import (
    AgentBusyError,
    AgentDiedError,
    AgentGoneError,
    ConfigError,
    LaunchError,
    LockedError,
)
from orch_protocol.core.messages import text_of
from orchestrator.root_double import Gate, World, opened
from virtual_clock import passed, until, virtual


class Stubborn(FakeLauncher):
    """A launcher that can fail to start, and that stops only when `may_stop` is set."""

    def __init__(self, fails: bool = False) -> None:
        super().__init__()
        self.fails = fails
        self.stops = 0
        self.stopping = asyncio.Event()
        self.may_stop = asyncio.Event()
        self.may_stop.set()

    async def start(self) -> None:
        """Raise LaunchError if `fails` is set."""
        if self.fails:
            raise LaunchError("no shim")

    async def stop(self) -> None:
        """Wait for `may_stop`, then end every agent."""
        self.stops += 1
        self.stopping.set()
        await self.may_stop.wait()
        await super().stop()


@virtual
async def test_failed_start_leaves_nothing_behind(tmp_path: Path) -> None:
    """The processes have ended, the folder of the unnamed run is removed, and a second start succeeds."""
    launcher = Stubborn(fails=True)
    world = World(tmp_path, launcher)
    with pytest.raises(LaunchError, match="no shim"):
        await world.start()
    assert launcher.stops == 1
    assert list((tmp_path / "runs").iterdir()) == []
    launcher.fails = False
    async with world:
        assert (await (await world.scripted("fine")).query("go")).text == "fine"


@virtual
async def test_failed_socket_start_closes_opened_resources(tmp_path: Path) -> None:
    """If the socket cannot be opened, the launcher is stopped, and the run can be opened again."""

    def refuse(*_: Any) -> Any:
        raise OSError("too many open files")

    launcher = Stubborn()
    world = World(tmp_path, launcher, run="r", connect=refuse)
    with pytest.raises(OSError, match="too many"):
        await world.start()
    assert launcher.stops == 1
    async with opened(tmp_path, run="r") as other:
        assert await other.agents() == []


@virtual
async def test_cancelled_close_completes_in_the_background(tmp_path: Path) -> None:
    """After a cancelled `close`, the processes still end, and a second `close` waits for that."""
    launcher = Stubborn()
    launcher.may_stop.clear()
    world = World(tmp_path, launcher, run="r")
    await world.start()
    agent = await world.scripted()
    closing = asyncio.ensure_future(world.close())
    await launcher.stopping.wait()
    closing.cancel()
    again = asyncio.ensure_future(world.close())
    await passed(1)
    assert closing.cancelled()
    assert not again.done()
    with pytest.raises(ConfigError, match="not running"):
        await agent.query("go")
    launcher.may_stop.set()
    await again
    assert launcher.worker(agent.id).ended.done()
    async with opened(tmp_path, run="r") as reopened:
        assert len(await reopened.agents()) == 1


@virtual
async def test_requests_during_close_are_refused(tmp_path: Path) -> None:
    """During a close, the supervisor also refuses a query that does not come through the API."""
    launcher = Stubborn()
    launcher.may_stop.clear()
    world = World(tmp_path, launcher)
    await world.start()
    root, agent = world.supervisor, await world.scripted()
    closing = asyncio.ensure_future(world.close())
    await launcher.stopping.wait()
    with pytest.raises(Exception, match="is being closed"):
        root.ask(root.tree.agents[agent.id], "go")
    launcher.may_stop.set()
    await closing


async def test_a_run_in_use_can_have_another_name(tmp_path: Path) -> None:
    """The error of the second orchestrator says so."""
    async with AsyncOrchestrator(home=tmp_path, env={}, run="mine", **fake_world()):
        second = AsyncOrchestrator(home=tmp_path, env={}, run="mine", **fake_world())
        with pytest.raises(LockedError, match=r"runs/mine is in use by process \d+: .*, or choose another run name$"):
            await second.start()


async def test_blocked_default_executor_does_not_block_the_root(tmp_path: Path) -> None:
    """The root reads transcripts, syncs its journal and closes without the loop's default executor."""
    loop, go = asyncio.get_running_loop(), threading.Event()
    loop.set_default_executor(ThreadPoolExecutor(1))
    stuck = loop.run_in_executor(None, go.wait)
    world = World(tmp_path)
    await world.start()
    try:
        agent = await world.scripted("fine")
        await agent.query("go")
        assert (await agent.show()).reply is not None
        log = world.supervisor._journal.log
        await until(lambda: not log.dirty, 20)
        await world.close()
        await until(lambda: not [each for each in threading.enumerate() if each.name.startswith("orch-disk")], 20)
    finally:
        go.set()
        await stuck


@virtual
async def test_close_is_idempotent_and_allows_a_restart(tmp_path: Path) -> None:
    """`close` can be called twice and before the first start, and the root can then be started."""
    world = World(tmp_path)
    await world.close()
    for _ in range(2):
        await world.start()
        assert await world.start() is world
        assert await world.agents(all=True) == []
        await world.close()
        await world.close()


@virtual
async def test_forked_child_closes_nothing(tmp_path: Path) -> None:
    """The processes belong to the parent; other calls in the child are refused."""
    async with opened(tmp_path) as world:
        agent = await world.scripted("fine")
        own, world._pid = world._pid, -1
        await world.close()
        with pytest.raises(ConfigError, match="belongs to process -1"):
            await agent.query("go")
        world._pid = own
        assert (await agent.query("go")).text == "fine"


@virtual
async def test_use_from_another_event_loop_is_refused(tmp_path: Path) -> None:
    """A call from another event loop raises ConfigError, and the root continues in its own loop."""
    async with opened(tmp_path) as world:
        agent = await world.scripted("fine")
        with ThreadPoolExecutor(1) as elsewhere:
            for attempt in (agent.query("go"), world.close()):
                with pytest.raises(ConfigError, match="was started in another event loop: use and close it there"):
                    elsewhere.submit(asyncio.run, attempt).result()
        assert (await agent.query("go")).text == "fine"


class Full(io.StringIO):
    """A stream to a full disk."""

    def write(self, _: str) -> int:
        raise OSError(28, "No space left on device")


@pytest.mark.parametrize("stream", [None, Full()], ids=["closed", "full"])
@virtual
async def test_missing_stderr_is_no_failure(
    tmp_path: Path, stream: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The notice about the offline backend is written to stderr if possible, and never to stdout."""
    async with AsyncOrchestrator(home=tmp_path, env={}, **fake_world()) as o:
        with monkeypatch.context() as quiet:
            quiet.setattr(sys, "stderr", stream)
            await o.spawn("t")
        assert len(await o.agents()) == 1
    assert capsys.readouterr().out == ""


@virtual
async def test_spool_files_of_a_killed_root_are_removed(tmp_path: Path) -> None:
    """The next root removes the spool files, so that the folder of a run does not grow with each crash."""
    spool = tmp_path / "runs" / "r" / "spool"
    spool.mkdir(parents=True, mode=0o700)
    (spool / "old.spill").touch()
    async with opened(tmp_path, run="r"):
        assert list(spool.iterdir()) == []
    assert not spool.exists()


@virtual
async def test_queued_queries_run_one_after_the_other(tmp_path: Path) -> None:
    """A query that is cancelled while it waits is skipped, and the other replies arrive."""
    async with opened(tmp_path) as o:
        agent = await o.scripted({"text": "first", "sleep": 0.01}, "second", "third")
        replies = [agent.submit("1"), *(agent.submit(str(n), queue=True) for n in (2, 3, 4))]
        with pytest.raises(AgentBusyError):
            agent.submit("5")
        replies[2].cancel()
        listed = [(await each).text for each in (replies[0], replies[1], replies[3])]
        assert listed == ["first", "second", "third"]
        prompts = [text_of(each)[-1:] for each in (await agent.show()).messages if each.role == "user"]
        assert prompts == ["1", "2", "4"]
        assert o.queued == {}


@virtual
@pytest.mark.parametrize("cancelled", [2, 3])
async def test_cancelled_query_does_not_change_the_order_of_the_queue(tmp_path: Path, cancelled: int) -> None:
    """A query that is submitted after the last queued query was cancelled still runs last."""
    async with opened(tmp_path) as o:
        agent = await o.scripted(*({"text": str(n), "sleep": 0.01} for n in range(4)))
        replies = [agent.submit(str(n), queue=True) for n in range(4)]
        replies[cancelled].cancel()
        await asyncio.gather(replies.pop(cancelled), return_exceptions=True)
        replies.append(agent.submit("4", queue=True))
        await asyncio.gather(*replies)
        prompts = [text_of(each)[-1:] for each in (await agent.show()).messages if each.role == "user"]
        assert prompts == [str(n) for n in range(5) if n != cancelled]


async def test_queued_query_fails_when_the_orchestrator_is_closed(tmp_path: Path) -> None:
    """The error says that the query was not sent."""
    async with opened(tmp_path) as o:
        agent = await o.scripted({"text": "late", "sleep": 60})
        _, *queued = [agent.submit(str(n), queue=True) for n in range(3)]
    for reply in queued:
        with pytest.raises(AgentDiedError, match=f"not sent to agent .*{agent.id}.*the orchestrator was closed"):
            await reply


async def test_queued_query_fails_with_the_agent(tmp_path: Path) -> None:
    """After a kill, the queued query raises AgentGoneError; an empty prompt raises an error at the call."""
    async with opened(tmp_path) as o:
        agent = await o.scripted({"text": "late", "sleep": 60}, "never")
        running, queued = agent.submit("1"), agent.submit("2", queue=True)
        with pytest.raises(ConfigError, match="is empty"):
            agent.submit(" ", queue=True)
        await agent.kill()
        for reply in (running, queued):
            with pytest.raises(AgentGoneError):
                await reply


async def test_submitted_query_is_visible_at_once(tmp_path: Path) -> None:
    """The status, `collect` and a second query see the agent as busy."""
    gate = Gate()
    async with opened(tmp_path) as world:
        agent = await world.scripted({"tool": "gate"}, "done", "more", tools=[gate.tool()])
        future = agent.submit("go")
        assert world.status(agent) == "busy"
        with pytest.raises(AgentBusyError):
            agent.submit("again")
        with pytest.raises(ConfigError, match="empty"):
            agent.submit(" ")
        gate.open.set()
        reply = await agent.collect()
        assert reply is not None
        assert reply == await future


@virtual
async def test_unawaited_query_failure_is_not_logged_by_the_loop(tmp_path: Path) -> None:
    """The loop's exception handler gets no report about an exception that was never retrieved."""
    collected: list[Any] = []
    loop = asyncio.get_running_loop()
    loop.set_exception_handler(lambda _, context: collected.append(context))
    gate = Gate()
    async with opened(tmp_path) as world:
        agent = await world.scripted({"tool": "gate"}, tools=[gate.tool()])
        agent.submit("go")
        await gate.called.wait()
        world.launcher.worker(agent.id).die(-9)
        with pytest.raises(AgentDiedError):
            await agent.collect()
    assert collected == []


@virtual
async def test_repr_of_an_agent_handle_always_works(tmp_path: Path) -> None:
    """The representation contains the agent's name while the root is open."""
    async with opened(tmp_path) as world:
        agent = await world.scripted(name="scout")
        assert repr(agent) == f"<AsyncSubagent {agent.id} 'scout'>"
    assert repr(agent) == f"<AsyncSubagent {agent.id}>"


def test_orchestrator_can_be_created_without_a_loop(tmp_path: Path) -> None:
    """The constructor needs no event loop and creates no folder."""
    AsyncOrchestrator(home=tmp_path / "home", env={})
    assert not (tmp_path / "home").exists()
