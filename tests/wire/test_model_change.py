"""Changes of the model and the thinking level during a conversation, with each API."""

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
FIELDS = ("model", "thinking", "output_config", "reasoning", "reasoning_effort")


def asked(server: ModelServer) -> dict[str, Any]:
    """Return the model of the last request and its thinking parameters."""
    body = server.requests[-1].body
    return {key: body[key] for key in FIELDS if key in body}


def thinks(level: str) -> dict[str, Any]:
    """Return the thinking parameters of a request to the root's model with this level."""
    return {"thinking": {"type": "adaptive"}, "output_config": {"effort": level}}


async def changes(agent: AsyncSubagent) -> list[str]:
    """Return the recorded changes of model and thinking level, on all branches."""
    kinds = ("model_change", "thinking_level_change")
    return [row.head for row in (await agent.session.tree()).entries if row.type in kinds]


async def test_model_and_level_changes_apply_to_the_next_request(
    server: ModelServer, root: AsyncOrchestrator, folder: Path
) -> None:
    """A change applies to the next request in the same process, and also after kill -9.

    Forks and branches keep the model and the level of their path.
    """
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
    assert agent.pid == pid  # the same process, so its memory is kept

    await agent.set_model(CHAT)
    assert await agent.set_thinking("minimal") == "low"  # this model has no level `minimal`
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


async def test_concurrent_session_changes_are_not_lost(server: ModelServer, folder: Path) -> None:
    """Two concurrent changes are both used, and root and worker have the same model.

    Summaries for a checkout and for a compaction come from the current model too.
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
