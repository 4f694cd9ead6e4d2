"""The tiers of a prompt in requests: stable parts come first and have cache markers."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Callable
from itertools import count, pairwise
from pathlib import Path
from typing import Any

import pytest

from orch import ArchivalConfig, AsyncOrchestrator, Config, PolicyConfig
from orch.testing import FakeLauncher, fake_world
from orch_protocol.agent.config import TriggerConfig
from orch_protocol.core.prompts import PromptConfig, PromptPart
from orch_worker.prompt import builder
from wire.model_server import ModelServer, Request, call, say
from wire.sent_requests import assert_goes_on, of_agents

MODELS = ("anthropic:claude-sonnet-5-5", "openai:gpt-4o", "openai:gpt-6-luna")
CREATE = {"call": "task_create", "input": {"tasks": ["look"]}}
READ = {"call": "read_file", "input": {"path": "AGENTS.md"}}
STYLE = PromptPart("style", "Be brief.", "stable")
HOUSE = PromptPart("house", "We use metres.", "context")
MARK = {"type": "ephemeral"}

Begin = Callable[..., Any]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A project with a context file."""
    folder = tmp_path / "project"
    folder.mkdir()
    (folder / "AGENTS.md").write_text("Count in dozens.\n")
    return folder


@pytest.fixture
async def begin(server: ModelServer, tmp_path: Path) -> AsyncIterator[Begin]:
    """A function that opens a root with a hook that adds prompt parts. Its models are at `server`."""
    opened: list[AsyncOrchestrator] = []

    async def begin(model: str, **archival: Any) -> tuple[AsyncOrchestrator, FakeLauncher]:
        env = {"ANTHROPIC_API_KEY": "k1", "ANTHROPIC_BASE_URL": server.url}
        env |= {"OPENAI_API_KEY": "k2", "OPENAI_BASE_URL": f"{server.url}/v1"}
        seed = TriggerConfig(tool_call_threshold=1)
        config = Config(
            prompt=PromptConfig(time=True, workspace=True),
            policy=PolicyConfig(permissions={"task_create": "allow", "write_file": "allow"}),
            archival=ArchivalConfig(enabled=True, async_=False, profile="seed", trigger=seed, **archival)
            if archival
            else ArchivalConfig(),
        )
        launcher = FakeLauncher()
        root = AsyncOrchestrator(model, config=config, home=tmp_path / "home", env=env, **fake_world(launcher))
        root.on("before_system_prompt", name="h")(lambda event, _ctx: event.patch(add=(STYLE, HOUSE)))
        opened.append(await root.start())
        return root, launcher

    yield begin
    await opened[-1].close()


@pytest.mark.parametrize("model", MODELS)
async def test_requests_differ_only_behind_the_stable_parts(
    server: ModelServer, begin: Begin, folder: Path, model: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Everything before the tail extends the previous request, although each tail is different.

    All volatile parts are on, each request has another date, and the process dies once.
    """
    days = count(1)
    monkeypatch.setattr(builder, "current_day", lambda: f"2026-05-{next(days):02}")
    root, launcher = await begin(model)
    agent = await root.spawn("Count", tools=["tasks", "read_file", "write_file"], context="full", cwd=folder)
    write = {"call": "write_file", "input": {"path": "a.txt", "content": "x"}}
    server.script += [call(CREATE), call(write), say("one"), say("two"), say("three")]
    await agent.query("How many?")
    await agent.query("And now?")
    launcher.worker(agent.id).die(9)
    (folder / "AGENTS.md").write_text("Count in scores.\n")
    await agent.query("And then?")
    assert server.refused == []
    sent = of_agents(server.requests)
    assert len(sent) == 5
    for before, after in pairwise(sent):
        assert_goes_on(before, after)
    assert len({each.tail for each in sent}) == 5
    assert all(each.system.endswith("Be brief.") for each in sent)
    begun = [each.bare[: each.bare.index(b"Task: ")] for each in sent]
    assert len(set(begun)) == 1
    assert begun[0].count(b"We use metres.") == begun[0].count(b"Count in dozens.") == 1
    assert ["# Tasks" in each.tail for each in sent] == [False, True, True, True, True]
    assert "a.txt" in sent[-1].tail
    assert not any("scores" in piece for each in sent for piece in each.pieces)


async def test_each_stable_tier_has_a_cache_marker(server: ModelServer, begin: Begin, folder: Path) -> None:
    """The system text, the description and two places in the conversation have cache markers. The tail has none."""
    root, _ = await begin(MODELS[0])
    agent = await root.spawn("Count", tools=["tasks", "read_file"], context="full", cwd=folder)
    server.script += [call(CREATE), call(READ), say("one"), say("two")]
    await agent.query("How many?")
    await agent.query("And now?")
    for request in server.requests:
        assert [part.get("cache_control") for part in request.body["system"]] == [MARK]
        first = request.body["messages"][0]["content"]
        assert "Count in dozens" in first[0]["text"]
        assert "We use metres" in first[0]["text"]
        assert first[0]["cache_control"] == MARK
        assert marks(request) <= 4
        last = request.body["messages"][-1]["content"]
        assert last[-1]["text"].startswith("Today is ")
        assert "cache_control" not in last[-1]
        assert last[-2]["cache_control"] == MARK
    assert marks(server.requests[-1]) == 4


async def test_volatile_system_text_follows_the_cache_marker(server: ModelServer, begin: Begin, folder: Path) -> None:
    """If the live-subagents block is in the system text, it follows the part with the cache marker."""
    root, _ = await begin(MODELS[0], placement="system")
    agent = await root.spawn("Count", tools=["read_file"], context="none", cwd=folder)
    server.script += [call(READ), say("one"), say('{"outcome": "Read."}'), say("two")]
    await agent.query("How many?")
    await agent.query("And now?")
    assert server.refused == []
    first, last = server.requests[0].body["system"], server.requests[-1].body["system"]
    assert [part.get("cache_control") for part in last] == [MARK, None]
    assert last[0] == first[0]
    assert "# Live Subagents" in last[1]["text"]
    assert marks(server.requests[-1]) <= 4


@pytest.mark.usefixtures("as_openai")
async def test_cache_key_ignores_volatile_parts(server: ModelServer, begin: Begin, folder: Path) -> None:
    """The cache key stays the same when the live-subagents block is added to the system text."""
    root, _ = await begin(MODELS[1], placement="system")
    agent = await root.spawn("Count", tools=["read_file"], context="none", cwd=folder)
    server.script += [call(READ), say("one"), say('{"outcome": "Read."}'), say("two")]
    await agent.query("How many?")
    await agent.query("And now?")
    bodies = [request.body for request in server.requests]
    assert "# Live Subagents" in bodies[-1]["messages"][0]["content"]
    assert bodies[0]["prompt_cache_key"] == bodies[-1]["prompt_cache_key"]


def marks(request: Request) -> int:
    """Return the number of cache markers in a request."""
    return json.dumps(request.body).count("cache_control")
