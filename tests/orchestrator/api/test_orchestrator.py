"""Opening and closing a root, and what is left behind when either goes wrong."""

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
from orch_protocol.core.errors import AgentBusyError, AgentDiedError, ConfigError, LaunchError
from orchestrator.root_double import Gate, World, opened
from virtual_clock import passed, until, virtual


class Stubborn(FakeLauncher):
    """A launcher that fails to start, or that ends when it may."""

    def __init__(self, fails: bool = False) -> None:
        super().__init__()
        self.fails = fails
        self.stops = 0
        self.stopping = asyncio.Event()
        self.may_stop = asyncio.Event()
        self.may_stop.set()

    async def start(self) -> None:
        """Raise if told to."""
        if self.fails:
            raise LaunchError("no shim")

    async def stop(self) -> None:
        """End every agent, when `may_stop`."""
        self.stops += 1
        self.stopping.set()
        await self.may_stop.wait()
        await super().stop()


@virtual
async def test_a_root_that_cannot_start_leaves_nothing(tmp_path: Path) -> None:
    """The run is free for another try, processes are ended, an unnamed run's folder is gone."""
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
async def test_a_root_without_its_socket_leaves_nothing(tmp_path: Path) -> None:
    """What had been opened before is closed."""

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
async def test_closing_goes_on_when_it_is_cancelled(tmp_path: Path) -> None:
    """Who was interrupted is gone, the processes as well; who closes again waits for that."""
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
async def test_what_is_asked_of_a_root_that_closes_is_refused(tmp_path: Path) -> None:
    """By whoever still holds its inside, as a server's connections do."""
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


async def test_functions_that_never_return_hold_up_nothing_of_ours(tmp_path: Path) -> None:
    """They may take every thread of the program's: transcripts are read, the journal is synced, closing ends."""
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
async def test_closing_twice_or_never_opened_does_nothing(tmp_path: Path) -> None:
    """And a closed one can be started again."""
    world = World(tmp_path)
    await world.close()
    for _ in range(2):
        await world.start()
        assert await world.start() is world
        assert await world.agents(all=True) == []
        await world.close()
        await world.close()


@virtual
async def test_a_fork_closes_nothing(tmp_path: Path) -> None:
    """The processes are its parent's; everything else is refused there."""
    async with opened(tmp_path) as world:
        agent = await world.scripted("fine")
        own, world._pid = world._pid, -1
        await world.close()
        with pytest.raises(ConfigError, match="belongs to process -1"):
            await agent.query("go")
        world._pid = own
        assert (await agent.query("go")).text == "fine"


@virtual
async def test_another_event_loop_closes_nothing_either(tmp_path: Path) -> None:
    """What is awaited there would never be woken up: it is told at once, and here all goes on."""
    async with opened(tmp_path) as world:
        agent = await world.scripted("fine")
        with ThreadPoolExecutor(1) as elsewhere:
            for attempt in (agent.query("go"), world.close()):
                with pytest.raises(ConfigError, match="was started in another event loop: use and close it there"):
                    elsewhere.submit(asyncio.run, attempt).result()
        assert (await agent.query("go")).text == "fine"


class Full(io.StringIO):
    """A stream of which the disk is full."""

    def write(self, _: str) -> int:
        raise OSError(28, "No space left on device")


@pytest.mark.parametrize("stream", [None, Full()], ids=["closed", "full"])
@virtual
async def test_what_nobody_can_be_told_is_no_failure(
    tmp_path: Path, stream: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """That no model is configured is said on stderr, where that is: never on stdout, and the agent is there."""
    async with AsyncOrchestrator(home=tmp_path, env={}, **fake_world()) as o:
        with monkeypatch.context() as quiet:
            quiet.setattr(sys, "stderr", stream)
            await o.spawn("t")
        assert len(await o.agents()) == 1
    assert capsys.readouterr().out == ""


@virtual
async def test_what_a_killed_root_left_in_the_spool_is_removed(tmp_path: Path) -> None:
    """A named run does not grow with every death of its root."""
    spool = tmp_path / "runs" / "r" / "spool"
    spool.mkdir(parents=True, mode=0o700)
    (spool / "old.spill").touch()
    async with opened(tmp_path, run="r"):
        assert list(spool.iterdir()) == []
    assert not spool.exists()


@virtual
async def test_a_submitted_query_is_under_way_at_once(tmp_path: Path) -> None:
    """Whoever looks, collects or asks right after it finds the agent at work."""
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
async def test_nobody_has_to_look_at_a_future(tmp_path: Path) -> None:
    """A failure that nobody waits for is not news to the event loop."""
    told: list[Any] = []
    loop = asyncio.get_running_loop()
    loop.set_exception_handler(lambda _, context: told.append(context))
    gate = Gate()
    async with opened(tmp_path) as world:
        agent = await world.scripted({"tool": "gate"}, tools=[gate.tool()])
        agent.submit("go")
        await gate.called.wait()
        world.launcher.worker(agent.id).die(-9)
        with pytest.raises(AgentDiedError):
            await agent.collect()
    assert told == []


@virtual
async def test_a_handle_shows_itself_always(tmp_path: Path) -> None:
    """With its name while there is somebody to ask for it."""
    async with opened(tmp_path) as world:
        agent = await world.scripted(name="scout")
        assert repr(agent) == f"<AsyncSubagent {agent.id} 'scout'>"
    assert repr(agent) == f"<AsyncSubagent {agent.id}>"


def test_an_orchestrator_needs_no_loop_to_be_made(tmp_path: Path) -> None:
    """It opens nothing until it is started."""
    AsyncOrchestrator(home=tmp_path / "home", env={})
    assert not (tmp_path / "home").exists()
