"""Hooks that select another model for a turn, with each API and the real SDKs."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from orch import AsyncOrchestrator, Config, SubagentsConfig
from orch.sessions.audit import audit
from orch.testing import fake_world
from orch_protocol.agent.config import HooksConfig
from orch_protocol.hooks.options import ModelRouter
from wire.model_server import ModelServer, call, fail, say
from wire.test_end_to_end import MODEL, environment, read

CHAT, RESPONSES = "openai:gpt-4o", "openai:gpt-6-luna"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with a file."""
    (tmp_path / "one.txt").write_text("one\n")
    return tmp_path


def opened(server: ModelServer, folder: Path, hooks: HooksConfig | None = None, **options: Any) -> AsyncOrchestrator:
    """Return a root whose models are at `server`."""
    config = Config(MODEL, hooks=hooks or HooksConfig(), **options)
    return AsyncOrchestrator(config=config, home=folder / "home", env=environment(server), **fake_world())


def asked(server: ModelServer) -> list[str]:
    """Return the model of each request, in order."""
    return [request.body["model"] for request in server.requests]


@pytest.mark.parametrize("other", [CHAT, RESPONSES, "anthropic:claude-haiku-5"])
async def test_routed_model_answers_one_turn(server: ModelServer, folder: Path, other: str) -> None:
    """The selected model gets the conversation and calls tools. Then the agent's own model answers again."""
    server.script += [say("It is one."), call(read("one.txt")), say("Still one."), say("One, as I said.")]
    async with opened(server, folder) as root:
        agent = await root.spawn("Read", tools=["read_file"], cwd=folder)
        await agent.query("Which?")
        name = root.register_hook(lambda _event, _ctx: {"model": other}, "before_turn", name="router")
        assert (await agent.query("Sure?")).text == "Still one."
        root.unregister_hook(name)
        assert (await agent.query("So?")).text == "One, as I said."
        path = Path((await agent.state()).folder) / "session.jsonl"
    own, named = MODEL.partition(":")[2], other.partition(":")[2]
    assert asked(server) == [own, named, named, own]
    assert "It is one." in json.dumps(server.requests[1].body)
    assert "Still one." in json.dumps(server.requests[3].body)
    changes = [row.name for row in audit(path) if row.what == "model_change"]
    assert changes == [other.replace(":", "/"), MODEL.replace(":", "/")]
    assert server.refused == []


@pytest.mark.parametrize("other", ["nowhere:model", "openai:gpt-4o", "openai:"])
async def test_disallowed_routed_model_falls_back_to_the_own_one(server: ModelServer, folder: Path, other: str) -> None:
    """If a hook selects an unusable model, the agent's own model answers, and the hook's error is reported."""
    server.script += [say("Fine.")]
    events: list[Any] = []
    async with opened(server, folder, subagents=SubagentsConfig(chat_models=("anthropic:*",))) as root:
        root.register_hook(lambda _event, _ctx: {"model": other}, "before_turn", name="router")
        agent = await root.spawn("Read", tools=["read_file"], cwd=folder)
        reply = await agent.query("Which?", on_event=events.append)
    assert reply.text == "Fine."
    assert asked(server) == [MODEL.partition(":")[2]]
    [listed] = [event.text for event in events if event.kind == "hook" and event.is_error]
    assert "named a model that cannot answer" in listed


async def test_router_prefers_the_successful_model(server: ModelServer, folder: Path) -> None:
    """After one model has failed, the other model answers the prompts of later agents."""
    hooks = HooksConfig(("model_router",), model_router=ModelRouter((MODEL, CHAT)))
    server.otherwise = lambda request: say("Done.") if request.body["model"] == "gpt-4o" else fail(400, "bad", "no")
    async with opened(server, folder, hooks) as root:
        first = await root.spawn("Read", tools=["read_file"], cwd=folder)
        with pytest.raises(Exception, match="no"):
            await first.query("Which pump is on?")
        for _ in range(2):
            agent = await root.spawn("Read", tools=["read_file"], cwd=folder)
            assert (await agent.query("Which pump is on?")).text == "Done."
    assert asked(server)[1:] == ["gpt-4o", "gpt-4o"]
