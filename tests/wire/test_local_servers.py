"""Agents whose model is a server on this machine: no key, no price, and the context window of the server."""

from __future__ import annotations

from pathlib import Path

import pytest

from orch import AsyncOrchestrator
from orch.testing import fake_world
from orch_protocol.core.errors import BackendError, ContextOverflowError
from wire.model_server import ModelServer, say

FACTS = {"/v1/models": {"data": [{"id": "tiny", "owned_by": "vllm", "max_model_len": 4096}]}}


def root(model: str, home: Path, **env: str) -> AsyncOrchestrator:
    """Return a root without keys."""
    return AsyncOrchestrator(model, home=home, env=env, **fake_world())


async def test_address_is_a_model(server: ModelServer, tmp_path: Path) -> None:
    """The request names the model of the server. The answer costs nothing, and the agent remembers its model."""
    server.facts = FACTS
    server.script.append(say("Hello.", usage={"input": 1000, "output": 10}))
    async with root(f"{server.url}/v1", tmp_path) as orchestrator:
        agent = await orchestrator.spawn("Greet", tools=[])
        reply = await agent.query("Hello?")
        state = await agent.state()
        assert (reply.text, reply.usage.cost_usd, reply.usage.cost_known) == ("Hello.", 0.0, True)
        assert (state.model, state.context_limit) == (f"{server.url}/v1#tiny", 4096)
    async with root("extractive:", tmp_path) as orchestrator:
        agent = await orchestrator.spawn("Greet", tools=[])
        await agent.set_model(f"{server.url}/v1#tiny")
        assert (await agent.query("Again?")).text == "done"
        assert (await agent.state()).model == f"{server.url}/v1#tiny"
    assert [request.body["model"] for request in server.requests] == ["tiny", "tiny"]


async def test_prompt_that_cannot_fit_is_not_sent(server: ModelServer, tmp_path: Path) -> None:
    """The error names the window, the sizes and what to do: a shorter prompt, fewer tools, or a larger context."""
    server.facts = FACTS
    async with root(f"{server.url}/v1#tiny", tmp_path) as orchestrator:
        agent = await orchestrator.spawn("Read", tools=["read_file"])
        with pytest.raises(ContextOverflowError, match=r"window of 4,096 tokens.*Shorten the prompt.*--ctx-size"):
            await agent.query("The relay closes at twelve volts. " * 1_000)
        assert (await agent.query("Short")).text == "done"
    assert len(server.requests) == 1


async def test_window_too_small_for_the_tools_is_an_error(server: ModelServer, tmp_path: Path) -> None:
    """A shorter prompt does not help, so the error does not ask for one."""
    server.facts = {"/v1/models": {"data": [{"id": "tiny", "owned_by": "vllm", "max_model_len": 512}]}}
    async with root(f"{server.url}/v1#tiny", tmp_path) as orchestrator:
        agent = await orchestrator.spawn("Read")
        with pytest.raises(ContextOverflowError, match=r"Nothing was sent\. Give the agent fewer tools"):
            await agent.query("Hello?")
    assert server.requests == []


async def test_missing_version_in_an_address_is_suggested(server: ModelServer, tmp_path: Path) -> None:
    """The error of a server that does not list its models suggests the path that most servers have."""
    async with root("openai:x", tmp_path, OPENAI_BASE_URL=server.url) as orchestrator:
        agent = await orchestrator.spawn("Greet", tools=[])
        with pytest.raises(BackendError, match=rf"Most servers expect {server.url}/v1: change OPENAI_BASE_URL"):
            await agent.query("Hello?")
