"""Watching an agent: the events of all its turns, for every caller, and approval questions."""

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
from orch_protocol.services.agents.lifecycle import CANCEL_TURN, CancelTurn
from orch_protocol.services.agents.query import SUBMIT, QueryAgent
from orch_protocol.services.agents.watch import WATCH, WatchAgent
from orch_protocol.services.policy.approvals import ANSWER_APPROVAL, AnswerQuestion
from orch_protocol.wire.watch_events import TurnEnded, TurnStarted
from orchestrator.root_double import Gate, World, opened
from virtual_clock import until, virtual

ASK = Config(policy=PolicyConfig(permissions={"bash": "ask"}))
REMOVE = {"tool": "bash", "input": {"command": "rm precious.txt"}}


class Seen:
    """A watcher that records events and has an asyncio event for each kind that tests wait for."""

    def __init__(self) -> None:
        self.events: list[Any] = []
        self.ended = asyncio.Event()
        self.asked = asyncio.Event()
        self.spoken = asyncio.Event()
        self.caught_up = asyncio.Event()

    def __call__(self, event: Any) -> None:
        """Record `event` and signal its kind."""
        self.events.append(event)
        marks = {"ended": self.ended, "question": self.asked, "spoken": self.spoken, "so_far": self.caught_up}
        marks.get(event.kind, asyncio.Event()).set()

    @property
    def kinds(self) -> list[str]:
        """Return the kinds of the events, in order."""
        return [each.kind for each in self.events]


@asynccontextmanager
async def watched(world: World, ref: str, **how: Any) -> AsyncIterator[Seen]:
    """Watch the agent `ref` until the block ends."""
    seen = Seen()
    task = asyncio.create_task(call(world.supervisor, USER, WATCH, WatchAgent(ref, **how), seen))
    await asyncio.sleep(0)
    try:
        yield seen
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


@virtual
async def test_watcher_sees_turns_of_other_clients(tmp_path: Path) -> None:
    """The watcher receives the prompt, the events and the reply of a query that another client sent."""
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
async def test_failing_watch_callback_does_not_stop_events(tmp_path: Path) -> None:
    """The event loop's exception handler receives the exception, once per event."""
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
async def test_late_watcher_gets_the_turn_so_far(tmp_path: Path) -> None:
    """A late watcher receives the prompt, the events so far and new events, with and without an earlier watcher."""
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
async def test_late_watcher_sees_the_restarted_turn(tmp_path: Path) -> None:
    """A turn that was restarted without watchers reports its events so far to a new watcher."""
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
async def test_watcher_sees_the_error_of_a_killed_turn(tmp_path: Path) -> None:
    """If a turn is killed, the last event of its watcher contains AgentDiedError and no reply."""
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
async def test_question_waits_for_a_returning_watcher(tmp_path: Path) -> None:
    """A question stays open when its watcher leaves, and the next watcher can answer it."""
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
    assert "the user denied it: keep it" in str(shown.messages)


@virtual
async def test_watchers_learn_that_a_question_is_settled(tmp_path: Path) -> None:
    """A watcher that did not answer also receives `question_over`."""
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
async def test_watch_without_a_callback_is_refused(tmp_path: Path) -> None:
    """A watch without a callback raises ConfigError, which states that the connection has no event receiver."""
    async with opened(tmp_path) as world:
        agent = await world.spawn("t", backend=ScriptedBackend(["x"]))
        with pytest.raises(ConfigError, match="this connection has no event receiver"):
            await call(world.supervisor, USER, WATCH, WatchAgent(agent.id))
