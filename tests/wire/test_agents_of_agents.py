"""Requests of several agents of one program to a model server."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from orch import AsyncOrchestrator, Config, Limits, SubagentsConfig
from orch.processes.in_process import InProcessLauncher
from wire.model_server import ModelServer, Request, call, say

REPORT = f"{'head ' * 400}the pump is K-77{' tail' * 400}"


async def test_omitted_part_of_a_long_answer_is_read_under_a_handle(server: ModelServer, tmp_path: Path) -> None:
    """An agent reads the omitted part of a subagent's long answer with `read_handle`, without a second query."""

    def answer(request: Request) -> Any:
        step = sum(message["role"] == "assistant" for message in request.body["messages"])
        if "Look at the pump" in str(request.body["messages"][0]):
            return say(REPORT)
        steps = [
            call({"call": "spawn_subagent", "input": {"task": "Look at the pump", "tools": [], "query": "Report"}}),
            call({"call": "read_handle", "input": {"handle": ".h_001", "search": "K-77"}}),
            say("Seen."),
        ]
        return steps[step]

    server.otherwise = answer
    env = {"ANTHROPIC_API_KEY": "k1", "ANTHROPIC_BASE_URL": server.url}
    config = Config(subagents=SubagentsConfig(allow_nested=True), limits=Limits(reply_tokens=200))
    async with AsyncOrchestrator(
        "anthropic:claude-sonnet-5-5", home=tmp_path, env=env, config=config, launcher=InProcessLauncher
    ) as o:
        lead = await o.spawn("Have it looked at", tools=["agents", "read_handle"], cwd=tmp_path)
        assert (await lead.query("Begin")).text == "Seen."
    assert server.refused == []
    assert len(server.requests) == 4
    answer_of, found = (str(server.requests[place].body["messages"][-1]) for place in (2, 3))
    assert "characters left out" in answer_of
    assert "K-77" not in answer_of
    assert "All of it is kept here:" in answer_of
    assert "the pump is K-77" in found


async def test_organization_header_is_sent_to_openai_only(
    server: ModelServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`OPENAI_ORG_ID` is sent as a header to OpenAI only, and an empty `OPENAI_PROJECT_ID` is not sent."""
    monkeypatch.setenv("OPENAI_ORG_ID", "org-7")
    env = {"MOONSHOT_API_KEY": "k3", "MOONSHOT_BASE_URL": f"{server.url}/v1"}
    env |= {"ANTHROPIC_API_KEY": "k1", "ANTHROPIC_BASE_URL": server.url, "OPENAI_API_KEY": "k2"}
    env |= {"OPENAI_BASE_URL": f"{server.url}/v1", "OPENAI_ORG_ID": "org-7", "OPENAI_PROJECT_ID": ""}
    async with AsyncOrchestrator(home=tmp_path, env=env, launcher=InProcessLauncher) as o:
        for model in ("openai:gpt-4o", "openai:gpt-6-luna", "anthropic:claude-sonnet-5-5", "moonshot:kimi-k3"):
            agent = await o.spawn("Help", model=model, tools=[], cwd=tmp_path)
            await agent.query("hi")
    assert [request.headers.get("openai-organization") for request in server.requests] == ["org-7", "org-7", None, None]
    assert not any("openai-project" in request.headers for request in server.requests)


async def test_header_values_are_redacted_only_if_secret(server: ModelServer, tmp_path: Path) -> None:
    """In tool results, the name of a team in a header is shown, and a token in a header is redacted like a key."""
    acme = {
        "api": "chat",
        "base_url": f"{server.url}/v1",
        "keys": ["ACME_API_KEY"],
        "headers": {"X-Team": "{ACME_TEAM}", "X-Gate": "{ACME_GATE_TOKEN}", "X-Not": "{ACME_UNSET}"},
    }
    (tmp_path / "models.json").write_text(json.dumps({"providers": {"acme": acme}}))
    (tmp_path / "owners").write_text("platform-team has gate-0123")
    env = {"ACME_API_KEY": "k1", "ACME_TEAM": "platform-team", "ACME_GATE_TOKEN": "gate-0123"}
    server.script += [call({"call": "read_file", "input": {"path": "owners"}}), say("Theirs.")]
    async with AsyncOrchestrator("acme:large", home=tmp_path, env=env, launcher=InProcessLauncher) as o:
        await (await o.spawn("Find whose it is", tools=["read_file"], cwd=tmp_path)).query("Whose?")
    asked, found = server.requests
    assert (asked.headers["x-team"], asked.headers["x-gate"]) == ("platform-team", "gate-0123")
    assert "x-not" not in asked.headers
    assert "platform-team has [a key]" in str(found.body["messages"])
