"""How large a conversation is said to be, by what the provider reports of it."""

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


def told(tokens: int, text: str = "ok", **more: int) -> Answer:
    """Return an answer to a request that was `tokens` long."""
    return say(text, usage={"input": tokens, "output": 5, **more})


async def test_a_conversation_is_as_long_as_it_was_told_to_be(server: ModelServer, talk: Talk) -> None:
    """What a provider adds unseen counts, cached or not; only what came since is estimated."""
    server.script += [told(1000, cache_read=9000), told(500, cache_read=9500, cache_write=400)]
    await talk.ask("hi")
    assert 10_000 < talk.backend.context_tokens() < 10_040
    talk.backend.append_user((Text("word " * 4000),))
    assert 13_000 < talk.backend.context_tokens() < 20_000


async def test_growth_that_was_told_corrects_what_is_estimated(server: ModelServer, talk: Talk) -> None:
    """A model whose tokens are shorter than thought is believed after some requests."""
    text = "word " * 4000
    before = talk.backend.estimator.text(text)
    server.script += [told(10_000 * step) for step in range(1, 6)]
    for _ in range(5):
        await talk.ask(text)
    assert talk.backend.estimator.text(text) > 1.3 * before
    size = talk.backend.context_tokens()
    talk.backend.append_user((Text(text),))
    assert talk.backend.context_tokens() - size > 1.3 * before


async def test_what_failed_attempts_took_is_no_size(server: ModelServer, begin: Callable[..., Talk]) -> None:
    """They are billed, and counted as used; the conversation is no longer for that."""
    talk = begin(MESSAGES)
    broken = msgspec.structs.replace(told(10_030), after=3)
    server.script += [told(10_000), broken, told(10_030)]
    await talk.ask()
    assert (await talk.ask()).usage.input_tokens == 20_060
    assert 10_030 < talk.backend.context_tokens() < 10_070


@pytest.mark.parametrize("model", ["anthropic:claude-sonnet-5-5", "openai:gpt-4o"])
async def test_a_revived_agent_knows_what_it_learned(server: ModelServer, tmp_path: Path, model: str) -> None:
    """`orch list` says what was reported; after a restart the same text weighs what it weighed before."""
    text = "word " * 4000
    server.script += [told(1000 + 10_000 * step) for step in range(1, 6)]
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
