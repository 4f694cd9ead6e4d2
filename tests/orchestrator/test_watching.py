"""Watching an agent: all of its turns, whoever asks it, and what needs approval in them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from orch import AgentDiedError, Config, ConfigError, PolicyConfig, ScriptedBackend
from orch.services import call
from orch_protocol.approval import AnswerQuestion
from orch_protocol.commands import TurnEvent
from orch_protocol.services import CancelTurn, QueryAgent
from orch_protocol.watching import TurnBegan, TurnEnded, WatchAgent
from orchestrator.world import Gate, World, opened
from virtual import virtual

ASK = Config(policy=PolicyConfig(permissions={"bash": "ask"}))
REMOVE = {"tool": "bash", "input": {"command": "rm precious.txt"}}


class Seen:
    """What a watcher was told, and an end to wait for."""

    def __init__(self) -> None:
        self.events: list[Any] = []
        self.ended = asyncio.Event()
        self.asked = asyncio.Event()

    def __call__(self, event: Any) -> None:
        """Take an event."""
        self.events.append(event)
        {"ended": self.ended, "question": self.asked}.get(event.kind, asyncio.Event()).set()

    @property
    def kinds(self) -> list[str]:
        """Return of what kinds the events were."""
        return [each.kind for each in self.events]


@asynccontextmanager
async def watched(world: World, ref: str, **how: Any) -> AsyncIterator[Seen]:
    """Watch an agent for a while."""
    seen = Seen()
    task = asyncio.create_task(call(world.supervisor, None, "watch", WatchAgent(ref, **how), seen))
    await asyncio.sleep(0)
    try:
        yield seen
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


@virtual
async def test_a_watcher_sees_turns_that_others_asked_for(tmp_path: Path) -> None:
    """The prompt, what happens, and the answer; the one who asked gets its answer as ever."""
    async with opened(tmp_path) as world:
        agent = await world.scripted("one", "two")
        async with watched(world, agent.id) as seen:
            assert (await agent.query("first?")).text == "one"
            await seen.ended.wait()
        assert (await agent.query("second?")).text == "two"
    assert seen.kinds == ["began", "text", "message", "ended"]
    assert isinstance(seen.events[0], TurnBegan)
    assert (seen.events[0].prompt, seen.events[0].streamed) == ("first?", True)
    assert isinstance(seen.events[-1], TurnEnded)
    assert seen.events[-1].query_id == seen.events[0].query_id
    assert seen.events[-1].reply is not None
    assert seen.events[-1].reply.text == "one"


@virtual
async def test_who_comes_in_the_middle_of_a_turn_sees_the_rest(tmp_path: Path) -> None:
    """Of a turn that was watched from its beginning, also the response so far."""
    gate = Gate()
    async with opened(tmp_path) as world:
        agent = await world.scripted({"tool": "gate"}, "late", tools=[gate.tool()])
        async with watched(world, agent.id):
            future = agent.submit("go")
            await gate.called.wait()
        (turn,) = world.supervisor.watchers._under_way.values()
        turn.happened(TurnEvent(7, "text", "so f"))
        turn.happened(TurnEvent(8, "text", "ar"))
        async with watched(world, agent.id) as seen:
            gate.open.set()
            await future
            await seen.ended.wait()
    began = seen.events[0]
    assert (began.prompt, began.n, began.text, began.streamed) == ("go", 8, "so far", True)
    assert seen.kinds[-2:] == ["message", "ended"]


@virtual
async def test_the_end_of_a_turn_that_nobody_watched_is_told(tmp_path: Path) -> None:
    """Its process sends nothing of it, and that is said."""
    gate = Gate()
    async with opened(tmp_path) as world:
        agent = await world.scripted({"tool": "gate"}, "late", tools=[gate.tool()])
        future = agent.submit("go")
        await gate.called.wait()
        async with watched(world, agent.id) as seen:
            gate.open.set()
            await future
            await seen.ended.wait()
    assert seen.kinds == ["began", "ended"]
    assert (seen.events[0].prompt, seen.events[0].streamed) == ("go", False)


@virtual
async def test_the_end_of_a_turn_that_failed_is_told(tmp_path: Path) -> None:
    """With its error, when the process was killed in the middle of it."""
    gate = Gate()
    async with opened(tmp_path) as world:
        agent = await world.scripted({"tool": "gate"}, "never", tools=[gate.tool()])
        async with watched(world, agent.id) as seen:
            future = agent.submit("go")
            await gate.called.wait()
            await call(world.supervisor, None, "cancel", CancelTurn(agent.id, hard=True))
            await seen.ended.wait()
            with pytest.raises(AgentDiedError):
                await future
    assert seen.events[-1].reply is None
    assert seen.events[-1].error.type == "AgentDiedError"


@virtual
async def test_a_question_waits_for_the_watcher_that_comes_back(tmp_path: Path) -> None:
    """Whoever watches is asked, though nobody waits for the answer; one who leaves has not said no."""
    async with opened(tmp_path / "home", config=ASK) as world:
        agent = await world.scripted(REMOVE, "done", tools=["bash"], cwd=tmp_path)
        async with watched(world, agent.id, approve=True) as first:
            await call(world.supervisor, None, "submit", QueryAgent(agent.id, "tidy"))
            await first.asked.wait()
        async with watched(world, agent.id, approve=True) as second:
            await second.asked.wait()
            asked = next(each for each in second.events if each.kind == "question")
            await call(world.supervisor, None, "answer", AnswerQuestion(asked.id, False, reason="keep it"))
            await second.ended.wait()
        shown = await agent.show()
    assert "the user said no: keep it" in str(shown.messages)


@virtual
async def test_watchers_are_told_that_a_question_is_over(tmp_path: Path) -> None:
    """The one who did not answer, too."""
    async with opened(tmp_path / "home", config=ASK) as world:
        agent = await world.scripted(REMOVE, "done", tools=["bash"], cwd=tmp_path)
        async with watched(world, agent.id, approve=True) as one, watched(world, agent.id, approve=True) as other:
            await call(world.supervisor, None, "submit", QueryAgent(agent.id, "tidy"))
            await one.asked.wait()
            id = next(each.id for each in one.events if each.kind == "question")
            await call(world.supervisor, None, "answer", AnswerQuestion(id, False))
            await other.ended.wait()
        for seen in (one, other):
            assert [each.id for each in seen.events if each.kind in ("question", "question_over")] == [id, id]


@virtual
async def test_watching_needs_somebody_to_tell(tmp_path: Path) -> None:
    """A watch that tells nobody is refused at once rather than waited for."""
    async with opened(tmp_path) as world:
        agent = await world.spawn("t", backend=ScriptedBackend(["x"]))
        with pytest.raises(ConfigError, match="nobody is there to be told"):
            await call(world.supervisor, None, "watch", WatchAgent(agent.id))
