"""Agents that end when the client that spawned or resumed them disconnects."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest

from orch import AsyncOrchestrator
from orch.daemon.control_socket import Client
from orch.daemon.daemon import Daemon
from orch.services import call
from orch.testing import FakeLauncher, FakeWorker, fake_world
from orch_protocol.core.errors import LaunchError


class Connected:
    """A client of a daemon."""

    def __init__(self, daemon: Daemon, agent_id: str | None = None) -> None:
        self.disconnected: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._client = Client(1, os.getuid(), agent_id=agent_id, disconnected=self.disconnected)
        self._daemon = daemon

    async def ask(self, method: str, **params: Any) -> Any:
        return await self._daemon.handle(method, msgspec.Raw(msgspec.json.encode(params)), self._client)

    async def spawn(self, **params: Any) -> str:
        params = {"task": "t", "cwd": "/", "script": ["hi"], "ends_with_connection": True} | params
        return str((await self.ask("spawn", **params)).id)

    def disconnect(self) -> None:
        self.disconnected.set_result(None)


class World:
    """A daemon whose agents run on the test's event loop."""

    def __init__(self, daemon: Daemon, orchestrator: AsyncOrchestrator, launcher: FakeLauncher) -> None:
        self.daemon, self.launcher = daemon, launcher
        self._agents = orchestrator.supervisor.tree.agents

    def client(self, agent_id: str | None = None) -> Connected:
        return Connected(self.daemon, agent_id)

    def status(self, id: str) -> str:
        return self._agents[id].status

    def all(self) -> list[str]:
        return [agent.status for agent in self._agents]

    async def end_of(self, *ids: str) -> None:
        await until(lambda: all(self.status(id) == "killed" for id in ids))


async def until(condition: Callable[[], object]) -> None:
    """Return when `condition` is true."""
    async with asyncio.timeout(20):
        while not condition():  # noqa: ASYNC110
            await asyncio.sleep(0)


async def pass_steps(count: int = 30) -> None:
    """Let the event loop run all tasks that are ready, and their successors."""
    for _ in range(count):
        await asyncio.sleep(0)


@asynccontextmanager
async def opened(home: Path, launcher: FakeLauncher | None = None) -> AsyncIterator[World]:
    launcher = launcher or FakeLauncher()
    async with AsyncOrchestrator(home=home, run="daemon", env={}, **fake_world(launcher)) as orchestrator:
        daemon = Daemon(orchestrator.supervisor, call, home=home, config=orchestrator.config)
        yield World(daemon, orchestrator, launcher)


@pytest.fixture
async def world(tmp_path: Path) -> AsyncIterator[World]:
    async with opened(tmp_path / "home") as made:
        yield made


async def test_agent_ends_when_its_client_disconnects(world: World) -> None:
    """Agents of other clients, and agents without the option, continue."""
    first, second = world.client(), world.client()
    bound, kept = await first.spawn(), await first.spawn(ends_with_connection=False)
    other = await second.spawn()
    first.disconnect()
    await world.end_of(bound)
    assert (world.status(kept), world.status(other)) == ("idle", "idle")


async def test_subagents_end_with_their_parent(world: World) -> None:
    client = world.client()
    parent = await client.spawn(depth=0, tools=["spawn_subagent", "list_files"])
    command = world.client(parent)
    child = await command.spawn(tools=["list_files"], ends_with_connection=False)
    client.disconnect()
    await world.end_of(parent, child)


async def test_subagent_of_a_command_ends_when_the_command_ends(world: World) -> None:
    """`orch run` as a command of an agent ends its subagent, although the agent may not kill subagents."""
    parent = await world.client().spawn(depth=0, tools=["spawn_subagent", "list_files"])
    command = world.client(parent)
    child = await command.spawn(tools=["list_files"])
    command.disconnect()
    await world.end_of(child)
    assert world.status(parent) == "idle"


class Slow(FakeLauncher):
    """A launcher that starts a worker when the test sets `may_start`."""

    def __init__(self) -> None:
        super().__init__()
        self.may_start = asyncio.Event()
        self.asked = asyncio.Event()

    async def launch(self, request: Any) -> FakeWorker:
        self.asked.set()
        await self.may_start.wait()
        return await super().launch(request)


async def test_agent_ends_if_its_client_disconnects_before_it_has_started(tmp_path: Path) -> None:
    """The agent does not wait for its process. A request id does not keep the agent."""
    launcher = Slow()
    async with opened(tmp_path / "home", launcher) as world:
        client = world.client()
        spawning = asyncio.create_task(client.spawn(request_id="r1"))
        await launcher.asked.wait()
        client.disconnect()
        with pytest.raises(asyncio.CancelledError):
            await spawning
        assert world.all() == ["killed"]
        launcher.may_start.set()


@pytest.mark.parametrize("steps", range(12))
async def test_agent_ends_whenever_its_client_disconnects(world: World, steps: int) -> None:
    """The client disconnects after any number of steps of the event loop. No agent is left alive."""
    client = world.client()
    spawning = asyncio.create_task(client.spawn())
    await pass_steps(steps)
    client.disconnect()
    await asyncio.gather(spawning, return_exceptions=True)
    await until(lambda: all(status == "killed" for status in world.all()))


async def test_spawn_after_the_client_disconnected_starts_no_agent(world: World) -> None:
    """The request was read after the client had closed the connection."""
    client = world.client()
    client.disconnect()
    with pytest.raises(asyncio.CancelledError):
        await client.spawn()
    await until(lambda: all(status == "killed" for status in world.all()))


async def test_failed_start_is_reported_and_nothing_is_ended(world: World) -> None:
    """The agent stays in the list, so that a user can see why it failed."""
    world.launcher.failures = ["no process"] * 10
    client = world.client()
    with pytest.raises(LaunchError, match="no process"):
        await client.spawn()
    client.disconnect()
    await pass_steps()
    assert world.all() == ["failed"]


async def test_resumed_agent_ends_with_the_connection_that_resumed_it(world: World) -> None:
    """An agent that a user resumed without the option continues when the first client disconnects."""
    client, user = world.client(), world.client()
    agent = await client.spawn()
    await user.ask("kill", refs=[agent])
    await user.ask("resume", ref=agent)
    client.disconnect()
    await pass_steps()
    assert world.status(agent) == "cold"
    await user.ask("kill", refs=[agent])
    again = world.client()
    await again.ask("resume", ref=agent, ends_with_connection=True)
    again.disconnect()
    await world.end_of(agent)


async def test_waiting_query_fails_when_the_agent_ends(world: World) -> None:
    """Another user who queries the agent gets an error at once."""
    client = world.client()
    agent = await client.spawn(script=[{"text": "late", "sleep": 600}])
    asking = asyncio.create_task(world.client().ask("query", ref=agent, prompt="?"))
    await until(lambda: world.status(agent) == "busy")
    client.disconnect()
    with pytest.raises(Exception, match="was killed"):
        await asking


async def test_next_daemon_ends_agents_whose_connection_was_closed(tmp_path: Path) -> None:
    """A daemon that ends closes all connections. Agents without the option stay."""
    async with opened(tmp_path / "home") as world:
        client = world.client()
        bound, kept = await client.spawn(), await client.spawn(ends_with_connection=False)
    async with opened(tmp_path / "home") as world:
        assert (world.status(bound), world.status(kept)) == ("cold", "cold")
        await world.daemon.end_agents_of_earlier_daemons()
        assert (world.status(bound), world.status(kept)) == ("killed", "cold")
