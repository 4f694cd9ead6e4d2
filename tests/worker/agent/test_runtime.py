"""A worker's turns, one after the other, and how it leaves them."""

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
    """The other end of a host's line: says what it is told to, and keeps what it hears."""

    def __init__(self, folder: Path) -> None:
        self.heard: list[tuple[str, str, Struct]] = []
        self._channel = FrameChannel(1, folder)

    def plug(self, on_data: Callable[[bytes], None]) -> Root:
        """Be the line of a host."""
        self._on_data = on_data
        return self

    def say(self, kind: str, body: Struct, id: str = "") -> None:
        """Let the host hear it, as from a callback of the event loop."""
        frame = self._channel.encode(kind, body, id, now=0.0)
        asyncio.get_running_loop().call_soon(self._on_data, frame)

    def send(self, data: bytes) -> None:
        """Hear a frame."""
        if (received := self._channel.decode(data)) is not None:
            frame, body = received
            self.heard.append((frame.kind, frame.id, body))

    def close(self) -> None:
        """Be left."""

    def finished(self) -> list[tuple[str, TurnFinished]]:
        """Return what was said of turns."""
        return [(id, body) for _, id, body in self.heard if isinstance(body, TurnFinished)]


class Mute:
    """A model that nobody asks."""

    async def close(self) -> None:
        """Be gone."""


class Agent:
    """Takes turns as it is told to."""

    def __init__(self, turns: Sequence[Turn]) -> None:
        self.backend = Mute()
        self.prompts: list[str] = []
        self._turns = list(turns)

    def ready(self, _: TranscriptPosition | None = None) -> Ready:
        """Be up."""
        return Ready(0)

    def begin(self) -> Any:
        """Need no brake."""

    async def query(self, query_id: str, query: Query, _: Any) -> TurnFinished:
        """Take the next turn."""
        self.prompts.append(query.prompt)
        await self._turns.pop(0)()
        return TurnFinished(Reply("a1", query_id, "done", "end_turn"))

    async def farewell(self, _: float) -> None:
        """Take half a second."""
        await passed(0.5)

    def close(self) -> None:
        """Be gone."""


async def up(folder: Path, *turns: Turn) -> tuple[Root, Agent, asyncio.Task[int]]:
    """Return the root of a host whose agent takes these turns, that agent, and the task in which the host serves."""
    root, agent = Root(folder), Agent(turns)
    made: Any = lambda *_: agent  # noqa: E731
    host = WorkerEndpoint(root.plug, birth=WorkerBirth(b""), incarnation=1, spool=folder, make=made)
    serving = asyncio.create_task(host.serve())
    spec = AgentSpec("a1", 1, "agent", "task", BackendSpec("scripted"), str(folder), str(folder))
    root.say("init", Init(spec))
    await passed(0.01)
    return root, agent, serving


def test_agent_is_made_with_the_orch_folders_of_init(tmp_path: Path) -> None:
    """What Init says of orch's folders reaches the maker of the agent."""
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
    """Take no time."""


async def stubborn() -> None:
    """Take an hour, or end well when that is not waited for."""
    with contextlib.suppress(asyncio.CancelledError):
        await passed(3600)


@virtual
async def test_a_turn_that_would_not_be_cancelled_is_waited_for_until_it_ends(tmp_path: Path) -> None:
    """And no longer: nobody waits for the next one."""
    root, _, serving = await up(tmp_path, at_once, stubborn)
    for id in ("q1", "q2"):
        root.say("query", Query("go"), id)
        await passed(0.01)
    began = asyncio.get_running_loop().time()
    root.say("stop", EmptyBody())
    assert await serving == 0
    assert asyncio.get_running_loop().time() - began < 1.0  # its farewell takes half of that
    assert [id for id, _ in root.finished()] == ["q1", "q2"]


@virtual
async def test_a_query_that_comes_as_it_leaves_is_left_to_the_next_process(tmp_path: Path) -> None:
    """It begins no turn, and nobody is told that it failed."""
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
async def test_a_turn_that_is_cancelled_from_within_is_over_and_the_next_one_comes(tmp_path: Path) -> None:
    """As when a model awaits what somebody has cancelled: whoever asked is not to wait for ever."""

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
async def test_what_a_turn_sets_in_context_variables_is_gone_with_it(tmp_path: Path) -> None:
    """Within the turn it holds, also after a wait and in tasks that it starts; the next one begins without it."""
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
