"""Turns of a worker in sequence, and the shutdown of a worker."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Sequence
from contextvars import ContextVar
from pathlib import Path
from typing import Any

from msgspec import Struct

from orch_protocol.agent.spec import AgentSpec, BackendSpec, WorkerBirth
from orch_protocol.core.messages import Reply, Usage
from orch_protocol.session.entries import TranscriptPosition
from orch_protocol.wire.frames import FrameChannel
from orch_protocol.wire.worker_messages import EmptyBody, Init, Query, Ready, TurnFinished
from orch_worker.transport.worker_endpoint import WorkerEndpoint
from virtual_clock import passed, virtual

Turn = Callable[[], Awaitable[object]]


class Root:
    """The root's end of a worker's connection. It sends frames and records received ones."""

    def __init__(self, folder: Path) -> None:
        self.heard: list[tuple[str, str, Struct]] = []
        self._channel = FrameChannel(1, folder)

    def plug(self, on_data: Callable[[bytes], None]) -> Root:
        """Return this object as the connection of a worker."""
        self._on_data = on_data
        return self

    def say(self, kind: str, body: Struct, id: str = "") -> None:
        """Send a frame to the worker, as from a callback of the event loop."""
        frame = self._channel.encode(kind, body, id, now=0.0)
        asyncio.get_running_loop().call_soon(self._on_data, frame)

    def send(self, data: bytes) -> None:
        """Record a frame."""
        if (received := self._channel.decode(data)) is not None:
            frame, body = received
            self.heard.append((frame.kind, frame.id, body))

    def close(self) -> None:
        """Do nothing."""

    def finished(self) -> list[tuple[str, TurnFinished]]:
        """Return the finished turns by query id."""
        return [(id, body) for _, id, body in self.heard if isinstance(body, TurnFinished)]


class Mute:
    """A model that is never called."""

    async def close(self) -> None:
        """Do nothing."""


class Agent:
    """An agent that runs the given functions as its turns."""

    def __init__(self, turns: Sequence[Turn]) -> None:
        self.backend = Mute()
        self.prompts: list[str] = []
        self._turns = list(turns)

    def ready(self, _: TranscriptPosition | None = None) -> Ready:
        """Return the state after the start."""
        return Ready(0)

    def begin_turn(self) -> Any:
        """Return no cancel token."""

    async def query(self, query_id: str, query: Query, _: Any) -> TurnFinished:
        """Run the next turn."""
        self.prompts.append(query.prompt)
        await self._turns.pop(0)()
        return TurnFinished(Reply("a1", query_id, "done", "end_turn"))

    async def run_end_hooks(self, _: float) -> None:
        """Wait half a second."""
        await passed(0.5)

    def close(self) -> None:
        """Do nothing."""


async def up(folder: Path, *turns: Turn) -> tuple[Root, Agent, asyncio.Task[int]]:
    """Return the root of a worker whose agent runs these turns, that agent, and the worker's task."""
    root, agent = Root(folder), Agent(turns)
    made: Any = lambda *_: agent  # noqa: E731
    host = WorkerEndpoint(root.plug, birth=WorkerBirth(b""), incarnation=1, spool=folder, make=made)
    serving = asyncio.create_task(host.serve())
    spec = AgentSpec("a1", 1, "agent", "task", BackendSpec("scripted"), str(folder), str(folder))
    root.say("init", Init(spec))
    await passed(0.01)
    return root, agent, serving


def test_agent_receives_the_orch_folders_of_init(tmp_path: Path) -> None:
    """The agent factory gets the folders as an argument."""
    given: list[tuple[str, ...]] = []

    async def check() -> None:
        root, agent = Root(tmp_path), Agent([])
        made: Any = lambda _spec, _keys, _root, orch_folders: given.append(orch_folders) or agent  # noqa: E731
        host = WorkerEndpoint(root.plug, birth=WorkerBirth(b""), incarnation=1, spool=tmp_path, make=made)
        serving = asyncio.create_task(host.serve())
        spec = AgentSpec("a1", 1, "agent", "task", BackendSpec("scripted"), str(tmp_path), str(tmp_path))
        root.say("init", Init(spec, orch_folders=("/o",)))
        host.stop()
        await serving

    asyncio.run(check())
    assert given == [("/o",)]


async def at_once() -> None:
    """Return at once."""


async def stubborn() -> None:
    """Take an hour, or return normally when cancelled."""
    with contextlib.suppress(asyncio.CancelledError):
        await passed(3600)


@virtual
async def test_runtime_waits_for_a_turn_that_ignores_cancellation(tmp_path: Path) -> None:
    """The worker ends as soon as the turn has ended."""
    root, _, serving = await up(tmp_path, at_once, stubborn)
    for id in ("q1", "q2"):
        root.say("query", Query("go"), id)
        await passed(0.01)
    began = asyncio.get_running_loop().time()
    root.say("stop", EmptyBody())
    assert await serving == 0
    assert asyncio.get_running_loop().time() - began < 1.0  # the end hooks take half of that
    assert [id for id, _ in root.finished()] == ["q1", "q2"]


@virtual
async def test_query_received_during_shutdown_is_left_to_the_next_process(tmp_path: Path) -> None:
    """The query starts no turn and is not reported as failed."""
    root, agent, serving = await up(tmp_path, at_once, at_once)
    failed: list[object] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: failed.append(context))
    root.say("query", Query("one"), "q1")
    root.say("stop", EmptyBody())
    await passed(0.1)
    root.say("query", Query("other"), "q2")
    assert await serving == 0
    assert agent.prompts == ["one"]
    assert failed == []
    assert [id for id, _ in root.finished()] == ["q1"]


@virtual
async def test_turn_cancelled_from_within_ends_and_the_next_query_runs(tmp_path: Path) -> None:
    """If a model awaits a cancelled task, the turn fails with its usage, and the next query is answered."""

    async def cancelled() -> None:
        error = asyncio.CancelledError()
        vars(error)["usage"] = Usage(5)
        raise error

    root, _, serving = await up(tmp_path, cancelled, at_once)
    for id in ("q1", "q2"):
        root.say("query", Query(id), id)
        await passed(0.01)
    (_, failed), (_, done) = root.finished()
    assert failed.error is not None
    assert "cancelled from within" in failed.error.message
    assert failed.usage == Usage(5)
    assert done.reply is not None
    root.say("stop", EmptyBody())
    await serving


@virtual
async def test_context_variables_set_in_a_turn_do_not_leak_into_the_next(tmp_path: Path) -> None:
    """Within a turn, they are kept after awaits and in the turn's tasks."""
    mine: ContextVar[str] = ContextVar("mine", default="unset")
    found: list[str] = []

    async def look() -> None:
        found.append(mine.get())

    async def turn() -> None:
        found.append(mine.get())
        mine.set("set")
        await passed(0.01)
        await asyncio.create_task(look())
        found.append(mine.get())

    root, _, serving = await up(tmp_path, turn, turn)
    for id in ("q1", "q2"):
        root.say("query", Query("go"), id)
        await passed(0.1)
    root.say("stop", EmptyBody())
    assert await serving == 0
    assert found == ["unset", "set", "set"] * 2
