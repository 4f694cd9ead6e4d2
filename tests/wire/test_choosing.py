"""Another model goes on with a conversation, and thinks more or less: read on the wire, by each API."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path
from typing import Any

import pytest

from orch import AgentBusyError, AgentDiedError, AsyncOrchestrator, AsyncSubagent, Config, ConfigError, ScriptedBackend
from wire.model_server import ModelServer, call, say
from wire.test_end_to_end import MODEL, environment, folder, read

__all__ = ["folder"]

TOKENS, RESPONSES, CHAT = "anthropic:claude-haiku-4-5", "openai:gpt-6-luna", "openai:o3-mini"
SAID = ("model", "thinking", "output_config", "reasoning", "reasoning_effort")


def opened(server: ModelServer, home: Path) -> AsyncOrchestrator:
    """Return a root at the server, of one run: the next one goes on with it."""
    return AsyncOrchestrator(config=Config(MODEL), run="one", home=home, env=environment(server))


def asked(server: ModelServer) -> dict[str, Any]:
    """Return whom the last request was for, and what it says of thinking."""
    body = server.requests[-1].body
    return {key: body[key] for key in SAID if key in body}


async def changes(agent: AsyncSubagent) -> list[str]:
    """Return what is on record of models and thinking, on all branches."""
    kinds = ("model_change", "thinking_level_change")
    return [row.head for row in (await agent.tree()).entries if row.type in kinds]


async def test_a_model_and_a_level_are_on_record_and_hold_for_the_next_request(
    server: ModelServer, folder: Path
) -> None:
    """In the same process, after kill -9, in a later root, in a copy; and on a branch what was there."""
    own = MODEL.partition(":")[2]
    server.otherwise = lambda request: say(f"As {request.body['model']}.")
    server.script += [call(read("one.txt"))]
    async with opened(server, folder / "home") as root:
        agent = await root.spawn("Read", tools=["read_file"], cwd=folder, name="reader")
        assert (await agent.query("Which?")).text == f"As {own}."
        assert asked(server) == {"model": own}
        first = (await agent.tree()).leaf
        pid = agent.pid

        assert await agent.set_thinking("medium") == "medium"
        await agent.query("Sure?")
        think = {"thinking": {"type": "adaptive"}, "output_config": {"effort": "medium"}}
        assert asked(server) == {"model": own, **think}

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
        copy = await agent.fork(first)
        assert (await agent.tree()).model == CHAT

    async with opened(server, folder / "home") as root:
        agent = await root.get("reader")
        await agent.query("And now?")
        assert asked(server) == {"model": "o3-mini", "reasoning_effort": "low"}
        assert await changes(agent) == ["medium", RESPONSES, "off", CHAT, "minimal"]

        last = (await agent.tree()).leaf
        await agent.checkout(first)
        assert (await agent.state()).model == MODEL
        await agent.query("Once more?")
        assert asked(server) == {"model": own}
        await agent.checkout(last)
        await agent.query("And there?")
        assert asked(server) == {"model": "o3-mini", "reasoning_effort": "low"}
        copy = await root.get(copy.id)
        await copy.query("And you?")
        assert asked(server) == {"model": own}

        assert await agent.set_model(TOKENS) == TOKENS
        assert await agent.set_thinking("low") == "low"
        await agent.query("In tokens?")
        assert asked(server) == {"model": "claude-haiku-4-5", "thinking": {"type": "enabled", "budget_tokens": 2048}}
        assert server.requests[-1].body["max_tokens"] > 2048
    assert server.refused == []


async def test_what_cannot_be_chosen_is_refused_and_changes_nothing(server: ModelServer, folder: Path) -> None:
    """A model nobody knows, one without a key, one that takes no level, a word that is none; a script; a busy agent."""
    async with opened(server, folder / "home") as root:
        agent = await root.spawn("Read", tools=["read_file"], cwd=folder)
        for model, why in [
            ("nowhere:model", "unknown provider 'nowhere'"),
            ("moonshot:kimi-k3", "needs a key"),
            ("", "which model is to answer"),
            ("scripted", "given to an agent when that is spawned"),
        ]:
            with pytest.raises(ConfigError, match=why):
                await agent.set_model(model)
        with pytest.raises(ConfigError, match="'very much' is none of off, minimal"):
            await agent.set_thinking("very much")
        script = await root.spawn("Say", backend=ScriptedBackend(["Said.", {"sleep": 60, "text": "late"}]))
        with pytest.raises(ConfigError, match="scripted is no model: it takes no level"):
            await script.set_thinking("low")
        assert await changes(agent) == await changes(script) == []

        # What answers by itself gives way to a model, which knows what was said.
        assert (await script.query("Say?")).text == "Said."
        working = script.submit("Say more?")
        with pytest.raises(AgentBusyError, match="is busy with: Say more"):
            await script.set_model(MODEL)
        await script.cancel(hard=True)
        with pytest.raises(AgentDiedError):
            await working
        await script.set_model(MODEL)
        server.script += [say("As a model.")]
        assert (await script.query("And now?")).text == "As a model."
        assert "Said." in json.dumps(server.requests[-1].body)
