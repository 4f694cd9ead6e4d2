"""Another model goes on with a conversation, and thinks more or less: read on the wire, by each API."""

from __future__ import annotations

import asyncio
import json
import os
import signal
from pathlib import Path
from typing import Any

from orch import AsyncOrchestrator, AsyncSubagent
from orch.testing import fake_world
from wire.model_server import ModelServer, call, say
from wire.test_end_to_end import MODEL, environment, folder, read, root

__all__ = ["folder", "root"]

TOKENS, RESPONSES, CHAT = "anthropic:claude-haiku-4-5", "openai:gpt-6-luna", "openai:o3-mini"
SAID = ("model", "thinking", "output_config", "reasoning", "reasoning_effort")


def asked(server: ModelServer) -> dict[str, Any]:
    """Return whom the last request was for, and what it says of thinking."""
    body = server.requests[-1].body
    return {key: body[key] for key in SAID if key in body}


def thinks(level: str) -> dict[str, Any]:
    """Return what a request to the root's model says of a level of thinking."""
    return {"thinking": {"type": "adaptive"}, "output_config": {"effort": level}}


async def changes(agent: AsyncSubagent) -> list[str]:
    """Return what is on record of models and thinking, on all branches."""
    kinds = ("model_change", "thinking_level_change")
    return [row.head for row in (await agent.session.tree()).entries if row.type in kinds]


async def test_a_model_and_a_level_are_on_record_and_hold_for_the_next_request(
    server: ModelServer, root: AsyncOrchestrator, folder: Path
) -> None:
    """In the same process, after kill -9, in a copy; and on a branch what was there."""
    own = MODEL.partition(":")[2]
    server.otherwise = lambda request: say(f"As {request.body['model']}.")
    server.script += [call(read("one.txt"))]
    agent = await root.spawn("Read", tools=["read_file"], cwd=folder, name="reader", thinking="xhigh")
    assert (await agent.query("Which?")).text == f"As {own}."
    assert asked(server) == {"model": own, **thinks("xhigh")}
    first = (await agent.session.tree()).leaf
    pid = agent.pid

    assert await agent.set_thinking("medium") == "medium"
    await agent.query("Sure?")
    assert asked(server) == {"model": own, **thinks("medium")}

    assert await agent.set_model(RESPONSES) == RESPONSES
    assert (await agent.state()).model == RESPONSES
    await agent.query("So?")
    assert asked(server) == {"model": "gpt-6-luna", "reasoning": {"effort": "medium"}}
    assert "this is one" in json.dumps(server.requests[-1].body)
    assert await agent.set_thinking("off") == "off"
    await agent.query("And?")
    assert asked(server)["reasoning"] == {"effort": "none"}
    assert agent.pid == pid  # what it has in memory is still there

    await agent.set_model(CHAT)
    assert await agent.set_thinking("minimal") == "low"  # it has none so little
    os.kill(pid or 0, signal.SIGKILL)
    await agent.query("Still?")
    assert asked(server) == {"model": "o3-mini", "reasoning_effort": "low"}
    copy = await agent.session.fork(first)
    assert (await agent.session.tree()).model == CHAT
    assert await changes(agent) == ["medium", RESPONSES, "off", CHAT, "minimal"]

    last = (await agent.session.tree()).leaf
    await agent.session.checkout(first)
    assert (await agent.state()).model == MODEL
    await agent.query("Once more?")
    assert asked(server) == {"model": own, **thinks("xhigh")}
    await agent.session.checkout(last)
    await agent.query("And there?")
    assert asked(server) == {"model": "o3-mini", "reasoning_effort": "low"}
    await copy.query("And you?")
    assert asked(server) == {"model": own, **thinks("xhigh")}

    assert await agent.set_model(TOKENS) == TOKENS
    assert await agent.set_thinking("low") == "low"
    await agent.query("In tokens?")
    assert asked(server) == {"model": "claude-haiku-4-5", "thinking": {"type": "enabled", "budget_tokens": 2048}}
    assert server.requests[-1].body["max_tokens"] > 2048
    assert server.refused == []


async def test_of_two_changes_at_once_none_is_lost(server: ModelServer, folder: Path) -> None:
    """Each knew of what was before both: who answers is what is on record, and the root knows it, too.

    So it is who shortens the conversation before the next question, and who sums up what it leaves.
    """
    server.otherwise = lambda request: say(f"As {request.body['model']}.")
    env, ask = environment(server), "So? " + "x" * 400
    async with AsyncOrchestrator(MODEL, home=folder / "home", env=env, **fake_world()) as root:
        agent = await root.spawn("Read", tools=[], cwd=folder)
        await agent.query(ask)
        first = (await agent.session.tree()).leaf
        await asyncio.gather(agent.set_model(RESPONSES), agent.set_thinking("high"))
        backend = root.supervisor.tree.agents[agent.id].spec.backend
        assert (backend.model, backend.thinking) == ("gpt-6-luna", "high")
        await agent.query(ask)
        assert asked(server) == {"model": "gpt-6-luna", "reasoning": {"effort": "high"}}
        await asyncio.gather(agent.set_thinking("low"), agent.set_model(CHAT))
        await agent.query(ask)
        assert asked(server) == {"model": "o3-mini", "reasoning_effort": "low"}
        await agent.set_model(TOKENS)
        await agent.session.checkout(first, summarize=True)
        assert asked(server)["model"] == "claude-haiku-4-5"
        await agent.query(ask)
        await agent.set_model(RESPONSES)
        await agent.session.compact()
        assert asked(server)["model"] == "gpt-6-luna"
