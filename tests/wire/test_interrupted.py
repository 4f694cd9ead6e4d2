"""Requests after an interrupted turn: they are complete, and tell the model what happened."""

from __future__ import annotations

import asyncio
import json
import os
import signal
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

import pytest

from orch import AsyncOrchestrator, AsyncSubagent
from orch.testing import fake_world
from orch_protocol.core.errors import AgentDiedError
from orch_protocol.core.messages import Text, ToolUse, assistant, text_of, user
from orchestrator.root_double import Gate
from wire.each_api import each_model
from wire.model_server import ModelServer, call, say
from wire.test_end_to_end import MODEL, environment, read

PIECES = {"anthropic:claude-sonnet-5-5": 4, "openai:gpt-4o": 2, "openai:gpt-6-luna": 4}
"""The number of events of a stream, by model, that contain a part of the text but not the end of the stream."""
STOP_AND_ASK = "Stop and ask what to do instead"


class Halted:
    """An agent in the middle of a turn. It has read a file, and waits for two calls of `gate`."""

    def __init__(self, server: ModelServer, root: AsyncOrchestrator, agent: AsyncSubagent, gate: Gate) -> None:
        self.server, self.root, self.agent, self._gate = server, root, agent, gate

    async def begin(self) -> asyncio.Task[object]:
        """Start a turn, and return its task when both calls of `gate` are running."""
        self._gate.called.clear()
        halting = {"call": "gate", "input": {}}
        self.server.script += [call(read("one.txt")), call(halting, halting)]
        turn = asyncio.ensure_future(self.agent.query("Go"))
        while self._gate.calls < 2:
            await self._gate.called.wait()
            self._gate.called.clear()
        return turn

    async def sent_next(self) -> tuple[str, str]:
        """Query the agent again. Return all messages of its request as text, and the last message."""
        self.server.script.append(say("here"))
        assert (await self.agent.query("And now?")).text == "here"
        assert self.server.refused == []
        body = self.server.requests[-1].body
        messages = body.get("messages") or body["input"]
        return json.dumps(messages), json.dumps(messages[-1])


Make = Callable[[str], Awaitable[Halted]]


@pytest.fixture
async def make(server: ModelServer, tmp_path: Path) -> AsyncIterator[Make]:
    """A function that spawns agents in separate processes. Their history contains an old call without a result."""
    (tmp_path / "one.txt").write_text("this is one\n")
    gates: list[Gate] = []
    stale = [user("long ago"), assistant("I look."), user("never mind")]
    stale[1] = type(stale[1])("assistant", (Text("I look."), ToolUse("old_1", "bash", {"command": "ls"})))
    env = environment(server)
    async with AsyncOrchestrator(MODEL, home=tmp_path / "home", env=env) as root:

        async def make(model: str) -> Halted:
            gates.append(gate := Gate())
            tools = ["read_file", gate.tool()]
            agent = await root.spawn("x", model=model, tools=tools, cwd=tmp_path, history=stale)
            return Halted(server, root, agent, gate)

        yield make
        for gate in gates:
            gate.open.set()


@each_model
async def test_cancelled_turn_is_reported_to_the_model(make: Make, model: str) -> None:
    """Finished calls have their results, and the results of other calls say that the call was interrupted.

    The next prompt says that the user interrupted the turn.
    """
    halted = await make(model)
    turn = await halted.begin()
    await halted.agent.cancel()
    reply = await turn
    assert getattr(reply, "unfinished", None) == ("gate", "gate")
    whole, last = await halted.sent_next()
    assert "[Interrupted: gate did not finish, and may have had effects: the user ended the turn." in whole
    assert whole.count(STOP_AND_ASK) == 2
    assert "this is one" in whole
    assert "The user interrupted the turn before this one. Not run, or not to the end: gate, gate." in last
    assert last.index("stop and ask") < last.index("And now?")
    assert whole.count("Interrupted") == 2, "the stale call is left alone"


@each_model
async def test_interruption_is_reported_once(make: Make, model: str) -> None:
    """The second prompt after an interrupted turn does not mention the interruption."""
    halted = await make(model)
    turn = await halted.begin()
    await halted.agent.cancel()
    await turn
    await halted.sent_next()
    _, last = await halted.sent_next()
    assert "interrupted" not in last


@each_model
async def test_hard_cancel_is_reported_as_the_users(make: Make, model: str) -> None:
    """The next prompt says that the user interrupted the turn, although the process ended too."""
    halted = await make(model)
    turn = await halted.begin()
    await halted.agent.cancel(hard=True)
    with pytest.raises(AgentDiedError):
        await turn
    whole, last = await halted.sent_next()
    assert "The process ended before a result was recorded" in whole
    assert "The user interrupted the turn before this one. Not run, or not to the end: gate, gate." in last


@each_model
async def test_death_is_not_reported_as_the_users(make: Make, model: str) -> None:
    """After kill -9, the next prompt says that the process ended, and does not mention the user."""
    halted = await make(model)
    turn = await halted.begin()
    pid = halted.agent.pid
    assert pid is not None
    os.kill(pid, signal.SIGKILL)
    with pytest.raises(AgentDiedError):
        await turn
    whole, last = await halted.sent_next()
    assert "The process ended before a result was recorded" in whole
    assert "cut short: its process ended (signal 9, SIGKILL); what it recorded is above." in last
    assert "Without a result, though perhaps done: gate, gate." in last
    assert "interrupted" not in whole


@each_model
async def test_text_streamed_before_a_cancel_is_in_the_next_request(
    server: ModelServer, tmp_path: Path, model: str
) -> None:
    """Text that was streamed before a cancel is in the reply, the next request and the transcript."""
    heard = asyncio.Event()
    server.script += [say("Once upon a time", after=PIECES[model], how="stall"), say("there was a pump.")]
    async with AsyncOrchestrator(home=tmp_path / model, env=environment(server), **fake_world()) as root:
        agent = await root.spawn("x", model=model)
        asking = asyncio.create_task(
            agent.query("Tell me a story", on_event=lambda event: heard.set() if event.kind == "text" else None)
        )
        await heard.wait()
        await agent.cancel()
        reply = await asking
        kept, _, why = reply.text.partition("\n\n")
        assert (reply.stop_reason, why) == ("cancelled", "[The turn was cancelled.]")
        assert kept
        assert "Once upon a time".startswith(kept)
        assert (await agent.query("Go on")).text == "there was a pump."
        assert json.dumps(server.requests[-1].body).count(kept) == 1
        assert [text_of(message) for message in (await agent.show()).messages][1] == kept
