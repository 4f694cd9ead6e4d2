"""The estimated size of a conversation, which is based on the usage that the provider reports."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest

from orch import AsyncOrchestrator
from orch.testing import fake_world
from orch_protocol.core.messages import Text
from wire.api_backends import MESSAGES, Talk
from wire.model_server import Answer, ModelServer, fail, say


def answer_of(tokens: int, text: str = "ok", **more: int) -> Answer:
    """Return an answer whose usage reports `tokens` input tokens."""
    return say(text, usage={"input": tokens, "output": 5, **more})


async def test_reported_size_is_the_base_of_the_estimate(server: ModelServer, talk: Talk) -> None:
    """The estimate is the reported size, including cached tokens, and an estimate of the later messages."""
    server.script += [answer_of(1000, cache_read=9000), answer_of(500, cache_read=9500, cache_write=400)]
    await talk.ask("hi")
    assert 10_000 < talk.backend.context_tokens() < 10_040
    talk.backend.append_user((Text("word " * 4000),))
    assert 13_000 < talk.backend.context_tokens() < 20_000


async def test_reported_growth_corrects_the_estimate(server: ModelServer, talk: Talk) -> None:
    """If a model reports more tokens than estimated, later estimates are higher."""
    text = "word " * 4000
    before = talk.backend.estimator.text(text)
    server.script += [answer_of(10_000 * step) for step in range(1, 6)]
    for _ in range(5):
        await talk.ask(text)
    assert talk.backend.estimator.text(text) > 1.3 * before
    size = talk.backend.context_tokens()
    talk.backend.append_user((Text(text),))
    assert talk.backend.context_tokens() - size > 1.3 * before


async def test_usage_of_failed_attempts_is_no_request_size(server: ModelServer, begin: Callable[..., Talk]) -> None:
    """The usage of a failed attempt is charged, but does not count for the size of the conversation."""
    talk = begin(MESSAGES)
    broken = msgspec.structs.replace(answer_of(10_030), after=3)
    server.script += [answer_of(10_000), broken, answer_of(10_030)]
    await talk.ask()
    assert (await talk.ask()).usage.input_tokens == 20_060
    assert 10_030 < talk.backend.context_tokens() < 10_070


@pytest.mark.parametrize("model", ["anthropic:claude-sonnet-5-5", "openai:gpt-4o"])
async def test_revived_agent_keeps_its_calibration(server: ModelServer, tmp_path: Path, model: str) -> None:
    """In a later root, the agent reports nearly the same size, even before its first successful request."""
    text = "word " * 4000
    server.script += [answer_of(1000 + 10_000 * step) for step in range(1, 6)]
    env = {"ANTHROPIC_API_KEY": "k", "ANTHROPIC_BASE_URL": server.url}
    env |= {"OPENAI_API_KEY": "k", "OPENAI_BASE_URL": f"{server.url}/v1"}
    async with AsyncOrchestrator(model, run="r", home=tmp_path, env=env, **fake_world()) as root:
        agent = await root.spawn("x", name="a")
        first = (await agent.state()).context_tokens
        for _ in range(5):
            await agent.query(text)
        assert 51_000 < (await agent.state()).context_tokens < 51_100
        assert first < 3000
    async with AsyncOrchestrator(model, run="r", home=tmp_path, env=env, **fake_world()) as root:
        agent = await root.get("a")
        server.script.append(fail(400, "invalid_request_error", "no"))
        with pytest.raises(Exception, match="no"):
            await agent.query("x")
        assert (await agent.state()).context_tokens == pytest.approx(51_000, rel=0.2)
