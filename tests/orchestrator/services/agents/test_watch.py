"""Watching an agent: all of its turns, whoever asks it, and what needs approval in them."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, nullcontext
from pathlib import Path
from typing import Any

import pytest

from orch import AgentDiedError, Config, ConfigError, PolicyConfig, ScriptedBackend
from orch.policy.caller import USER
from orch.services import call
from orch_protocol.core.messages import assistant
from orch_protocol.policy.approval import AnswerQuestion
from orch_protocol.services.approvals import ANSWER_APPROVAL
from orch_protocol.services.requests import CANCEL_TURN, SUBMIT, CancelTurn, QueryAgent
from orch_protocol.services.resources import WATCH
from orch_protocol.wire.watch_events import TurnEnded, TurnStarted, WatchAgent
from orchestrator.root_double import Gate, World, opened
from virtual_clock import until, virtual

ASK = Config(policy=PolicyConfig(permissions={"bash": "ask"}))
REMOVE = {"tool": "bash", "input": {"command": "rm precious.txt"}}


class Seen:
    """What a watcher was told, and an end to wait for."""

    def __init__(self) -> None:
        self.events: list[Any] = []
        self.ended = asyncio.Event()
        self.asked = asyncio.Event()
        self.spoken = asyncio.Event()
        self.caught_up = asyncio.Event()

    def __call__(self, event: Any) -> None:
        """Take an event."""
        self.events.append(event)
        marks = {"ended": self.ended, "question": self.asked, "spoken": self.spoken, "so_far": self.caught_up}
        marks.get(event.kind, asyncio.Event()).set()

    @property
    def kinds(self) -> list[str]:
        """Return of what kinds the events were."""
        return [each.kind for each in self.events]


@asynccontextmanager
async def watched(world: World, ref: str, **how: Any) -> AsyncIterator[Seen]:
    """Watch an agent for a while."""
    seen = Seen()
    task = asyncio.create_task(call(world.supervisor, USER, WATCH, WatchAgent(ref, **how), seen))
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
    assert isinstance(seen.events[0], TurnStarted)
    assert (seen.events[0].prompt, seen.events[0].met) == ("first?", False)
    assert isinstance(seen.events[-1], TurnEnded)
    assert seen.events[-1].query_id == seen.events[0].query_id
    assert seen.events[-1].reply is not None
    assert seen.events[-1].reply.text == "one"


@virtual
async def test_a_programs_own_function_that_fails_stops_nothing(tmp_path: Path) -> None:
    """What it raised is told once an event, where event loops tell such things; others hear each event."""
    failed: list[Any] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: failed.append(context))
    async with opened(tmp_path) as world:
        agent = await world.scripted("one", "two")
        async with watched(world, agent.id) as seen:
            assert (await agent.query("first?", on_event=lambda event: event.nothing)).text == "one"
            await seen.ended.wait()
        assert (await agent.query("second?", on_event=lambda _: sys.exit(3))).text == "two"
    assert seen.kinds == ["began", "text", "message", "ended"]
    assert [type(context["exception"]) for context in failed] == [*[AttributeError] * 2, *[SystemExit] * 2]
    assert "<lambda>" in failed[0]["message"]


@virtual
async def test_who_comes_in_the_middle_of_a_turn_sees_the_rest(tmp_path: Path) -> None:
    """All that has happened in it, the response so far, then each event: the same whether somebody watched before, or
    nobody did and its process told nothing until now."""
    for before in (True, False):
        gate = Gate()
        async with opened(tmp_path / str(before)) as world:
            agent = await world.scripted("old", {"text": "Let me", "tool": "gate"}, "late", tools=[gate.tool()])
            await agent.query("what is it?")
            async with watched(world, agent.id) if before else nullcontext():
                future = agent.submit("go")
                await gate.called.wait()
            async with watched(world, agent.id, messages=1) as seen:
                await seen.caught_up.wait()
                gate.open.set()
                await future
                await seen.ended.wait()
            async with watched(world, agent.id, messages=9) as after:
                await after.spoken.wait()
        spoken, began, so_far, *rest = seen.events
        assert (spoken.messages, spoken.before) == ((assistant("old"),), 1)
        assert (began.prompt, began.met, so_far.lost) == ("go", True, 0)
        assert [(each.kind, each.text) for each in so_far.events[:2]] == [("message", "Let me"), ("tool_call", "{}")]
        assert [each.kind for each in rest] == ["tool_result", "text", "message", "ended"]
        assert [each.n for each in rest[:-1]] == [so_far.n + 1, so_far.n + 2, so_far.n + 3]
        assert after.kinds == ["spoken"]
        assert after.events[0].messages[-1] == assistant("late")


@virtual
async def test_who_comes_after_another_process_began_the_turn_anew_sees_that_one(tmp_path: Path) -> None:
    """Unwatched, as the one that ended was not: it is asked what happened so far."""
    gate = Gate()
    async with opened(tmp_path) as world:
        agent = await world.scripted({"text": "Let me", "tool": "gate"}, "done", tools=[gate.tool()])
        async with watched(world, agent.id):
            future = agent.submit("go")
            await until(lambda: world.supervisor.tree.agents[agent.id].status == "busy")
            world.launcher.worker(agent.id).die(-9)
        await gate.called.wait()
        assert world.supervisor.tree.agents[agent.id].incarnation == 2
        async with watched(world, agent.id) as seen:
            await seen.caught_up.wait()
            gate.open.set()
            await future
            await seen.ended.wait()
    assert [each.text for each in seen.events[1].events][:2] == ["Let me", "{}"]
    assert seen.kinds[2:] == ["tool_result", "text", "message", "ended"]


@virtual
async def test_the_end_of_a_turn_that_failed_is_told(tmp_path: Path) -> None:
    """With its error, when the process was killed in the middle of it."""
    gate = Gate()
    async with opened(tmp_path) as world:
        agent = await world.scripted({"tool": "gate"}, "never", tools=[gate.tool()])
        async with watched(world, agent.id) as seen:
            future = agent.submit("go")
            await gate.called.wait()
            await call(world.supervisor, USER, CANCEL_TURN, CancelTurn(agent.id, hard=True))
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
            await call(world.supervisor, USER, SUBMIT, QueryAgent(agent.id, "tidy"))
            await first.asked.wait()
        async with watched(world, agent.id, approve=True) as second:
            await second.asked.wait()
            asked = next(each for each in second.events if each.kind == "question")
            await call(world.supervisor, USER, ANSWER_APPROVAL, AnswerQuestion(asked.id, False, reason="keep it"))
            await second.ended.wait()
        shown = await agent.show()
    assert "the user said no: keep it" in str(shown.messages)


@virtual
async def test_watchers_are_told_that_a_question_is_over(tmp_path: Path) -> None:
    """The one who did not answer, too."""
    async with opened(tmp_path / "home", config=ASK) as world:
        agent = await world.scripted(REMOVE, "done", tools=["bash"], cwd=tmp_path)
        async with watched(world, agent.id, approve=True) as one, watched(world, agent.id, approve=True) as other:
            await call(world.supervisor, USER, SUBMIT, QueryAgent(agent.id, "tidy"))
            await one.asked.wait()
            id = next(each.id for each in one.events if each.kind == "question")
            await call(world.supervisor, USER, ANSWER_APPROVAL, AnswerQuestion(id, False))
            await other.ended.wait()
        for seen in (one, other):
            assert [each.id for each in seen.events if each.kind in ("question", "question_over")] == [id, id]


@virtual
async def test_watching_needs_somebody_to_tell(tmp_path: Path) -> None:
    """A watch that tells nobody is refused at once rather than waited for."""
    async with opened(tmp_path) as world:
        agent = await world.spawn("t", backend=ScriptedBackend(["x"]))
        with pytest.raises(ConfigError, match="this connection has no event receiver"):
            await call(world.supervisor, USER, WATCH, WatchAgent(agent.id))
