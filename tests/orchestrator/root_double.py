"""A root whose agents run on the event loop of the test, with functions that cause faults."""

from __future__ import annotations

import asyncio
import errno
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from orch import AsyncOrchestrator, AsyncSubagent, Config, ScriptedBackend, SubagentsConfig
from orch.processes.base import LaunchRequest
from orch.testing import FakeLauncher, FakeWorker, fake_world
from orch.tree.journal.journal import Journal
from orch.tree.tree import Tree
from orch_protocol.wire.frames import Frame
from orch_worker.session.log.append_log import AppendLog

__all__ = ["NEST", "Gate", "Slow", "World", "fill", "kind_of", "nesting", "opened", "queued"]

T = TypeVar("T")

NEST = ["spawn_subagent", "query_subagent", "collect_subagent", "wait_subagents", "list_subagents", "kill_subagent"]


class World(AsyncOrchestrator):
    """An orchestrator whose agents run on this event loop, with functions that cause faults."""

    def __init__(self, home: Path, launcher: FakeLauncher | None = None, **options: Any) -> None:
        self.launcher = launcher or FakeLauncher()
        super().__init__(home=home, env={}, **(fake_world(self.launcher) | options))

    def lose(self, lost: Callable[[str], bool]) -> None:
        """Drop the frames, in both directions, for whose kind `lost` returns True."""
        assert self.launcher.board is not None
        self.launcher.board.lose = lambda data: lost(kind_of(data))

    def fill_disk(self) -> Callable[[], None]:
        """Make every write to the journal fail. Return a function that undoes this."""
        return fill(self.supervisor._journal.log)

    def spoil(self, kind: str) -> None:
        """Remove the files that frames of the kind `kind` refer to."""
        board = self.launcher.board
        assert board is not None

        def spoil(data: bytes) -> bool:
            if kind_of(data) == kind:
                for file in self.supervisor.workers.transport.peers.spool.glob("*/*.spill"):
                    file.unlink()
            return False

        board.lose = spoil

    def refolded(self) -> Tree:
        """Return the tree that results from the entries in the journal's file."""
        path = self.supervisor._journal.log.path
        copy = path.with_name("copy.jsonl")
        copy.write_bytes(path.read_bytes())
        journal = Journal.open(copy)
        journal.close()
        return Tree(self.config.subagents, journal.entries)

    def status(self, agent: AsyncSubagent) -> str:
        return self.supervisor.tree.agents[agent.id].status

    async def scripted(self, *said: Any, items: Any = (), **options: Any) -> AsyncSubagent:
        """Spawn an agent whose scripted model answers with `said` or `items`."""
        return await self.spawn("work", backend=ScriptedBackend(said or items), **options)


@asynccontextmanager
async def opened(home: Path, **options: Any) -> AsyncIterator[World]:
    """Yield a running orchestrator. At the end, check that its tree equals the tree that results from its journal."""
    world = World(home, **options)
    async with world:
        yield world
        folded, live = world.refolded().agents, world.supervisor.tree.agents
        assert folded.by_id == live.by_id
        assert world.supervisor.waiters._topics == {}
        assert world.supervisor._deadlines._prompts.keys() == {node.pending.query_id for node in pending(world)}


async def queued(world: World, request: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
    """Start `request` and wait until it waits for a place. Return its task."""
    before = len(world.supervisor.places)
    task = asyncio.ensure_future(request)
    while len(world.supervisor.places) == before:
        assert not task.done()
        await asyncio.sleep(0.001)
    return task


def pending(world: World) -> list[Any]:
    """Return the agents that have a query in progress."""
    return list(world.supervisor.tree.agents.pending.values())


def fill(log: AppendLog) -> Callable[[], None]:
    """Make every write to `log` fail. Return a function that undoes this."""

    def full(*_: Any) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    log._write = full  # type: ignore[method-assign]
    return lambda: vars(log).pop("_write") and None


def kind_of(data: bytes) -> str:
    """Return the kind of the frame in `data`."""
    return msgspec.msgpack.decode(data, type=Frame).kind


def nesting(**more: Any) -> Config:
    """Return a configuration with which agents may spawn agents."""
    return Config(subagents=SubagentsConfig(allow_nested=True, **more))


class Gate:
    """A tool that counts its calls and returns when the gate is open."""

    def __init__(self) -> None:
        self.calls = 0
        self.called = asyncio.Event()
        self.open = asyncio.Event()

    def tool(self) -> Any:
        """Return the function that agents call."""

        async def gate() -> str:
            """Wait until the gate is open."""
            self.calls += 1
            self.called.set()
            await self.open.wait()
            return "open"

        return gate


class Slow(FakeLauncher):
    """A launcher that waits for `go` before it launches a worker."""

    def __init__(self) -> None:
        super().__init__()
        self.asked = asyncio.Event()
        self.go = asyncio.Event()

    async def launch(self, request: LaunchRequest) -> FakeWorker:
        """Launch a worker as soon as `go` is set."""
        self.asked.set()
        await self.go.wait()
        return await super().launch(request)
