"""A long random conversation with failures and restarts: it stays valid for every API."""

from __future__ import annotations

import random
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

from agent_doubles import Talk as Turns
from agent_doubles import assert_valid
from orch_protocol.agent.spec import Limits
from orch_protocol.core.messages import Message, ToolUse
from orch_worker.agent.turn import CancelToken
from orch_worker.session.session_reader import read_session
from orch_worker.session.transcript import Transcript
from orch_worker.tools.api.base import tool
from wire.api_backends import KIMI, PEERS, Talk
from wire.model_server import Answer, ModelServer, Request, call, fail, say

STEPS = 80
ALL_PEERS = PEERS | {"kimi": KIMI}
HALF = Message("assistant", (ToolUse("half_1", "look", {"n": 1}), ToolUse("half_2", "look", {"n": 2})))


@pytest.mark.parametrize("name", ALL_PEERS)
async def test_many_steps_with_failures_are_accepted(
    server: ModelServer, begin: Callable[..., Talk], name: str, tmp_path: Path
) -> None:
    """The server accepts 80 requests with parallel calls, errors, broken streams and truncated responses.

    The turns can also be cancelled, and the transcript is opened again several times.
    """
    peer, chance = ALL_PEERS[name], random.Random(name)
    brake: list[CancelToken] = []
    thoughts = ("",) if name == "chat" else ("", "Hm.")  # this API does not send reasoning
    cuts = 0

    @tool
    def look(n: int) -> str:
        """Look."""
        if n % 11 == 0:
            raise ValueError("nothing there")
        if n % 17 == 0:
            brake[0].cancel()
        return f"seen {n}"

    def answer(_: Request) -> Answer:
        n, dice = len(server.requests), chance.random()
        calls = [{"call": "look", "input": {"n": n + extra}} for extra in range(chance.randint(1, 4))]
        if dice < 0.05:
            return fail(529)
        if dice < 0.10:
            return say("half", after=2, how=chance.choice(("eof", "drop")))
        if dice < 0.15:
            return call(*calls, thinking=chance.choice(thoughts), stop="max_tokens")
        if dice < 0.25:
            return say(f"so far {n}")
        return call(*calls, text=chance.choice(("", f"Step {n}.")), thinking=chance.choice(thoughts))

    server.otherwise = answer
    while len(server.requests) < STEPS:
        # Each pass continues with the messages that the previous pass stored, like a new process after a death.
        transcript = Transcript.open(tmp_path, agent="a", cwd=str(tmp_path))
        turns = Turns(begin(peer).backend, look)
        turns.backend.load(transcript.session.messages)
        turns.record = partial(transcript.message, turn="q")  # type: ignore[method-assign]
        until = len(server.requests) + chance.randint(5, 40)
        while len(server.requests) < until:
            brake[:] = [turns.brake]
            reply = await turns.ask("go on", Limits(max_turns=chance.randint(1, 8)))
            cuts += reply.stop_reason in ("cancelled", "max_turns", "max_tokens")
            turns.brake = CancelToken()
        if chance.random() < 0.5:
            transcript.message(HALF, "q")  # as if the process had ended between the calls and their results
        transcript.close()
    assert server.refused == []
    assert cuts > 2
    assert_valid(read_session(tmp_path).messages)
