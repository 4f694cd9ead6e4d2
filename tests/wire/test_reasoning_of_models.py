"""Signed thinking and encrypted reasoning in conversations that several models continue."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from orch import AsyncOrchestrator, Message, Opaque, Text, Thinking, ToolResult, ToolUse, user
from orch.testing import fake_world
from orch_protocol.core.errors import BackendError
from wire.api_backends import KIMI, MESSAGES, RESPONSES, Peer, Talk
from wire.messages_rules import sign
from wire.model_server import Answer, ModelServer, Request, call, fail, say
from wire.test_end_to_end import environment, folder, read

__all__ = ["folder"]

Begin = Callable[..., Talk]
OPUS, SONNET, HAIKU = "anthropic:claude-opus-4-8", "anthropic:claude-sonnet-5-5", "anthropic:claude-haiku-4-5"
LUNA, SOL = "openai:gpt-6-luna", "openai:o3"
EXPIRED = Thinking("Hm.", "expired", "anthropic")


def reasoning_in(request: Request) -> list[dict[str, Any]]:
    """Return the thinking and the reasoning in a request."""
    body = request.body
    items = [part for row in body.get("messages") or () for part in row["content"]] or body["input"]
    return [part for part in items if part["type"] in ("thinking", "redacted_thinking", "reasoning")]


def thinks(request: Request) -> Answer:
    """Return a call after a prompt and an answer after a result, both with thinking."""
    last = json.dumps((request.body.get("messages") or request.body["input"])[-1])
    hidden = () if "input" in request.body else ({"redacted": f"secret of {request.body['model']}"},)
    what = {"text": f"As {request.body['model']}."} if "this is one" in last else read("one.txt")
    return Answer(blocks=({"thinking": f"I am {request.body['model']}."}, *hidden, what))


@pytest.mark.parametrize("models", [(OPUS, SONNET, OPUS), (LUNA, SOL, LUNA), (OPUS, LUNA, HAIKU)])
async def test_model_gets_only_its_own_reasoning(server: ModelServer, folder: Path, models: tuple[str, ...]) -> None:
    """After changes of the model and in forks, no request is refused, and own reasoning comes back after a change."""
    server.otherwise = thinks
    async with AsyncOrchestrator(models[0], home=folder / "home", env=environment(server), **fake_world()) as root:
        agent = await root.spawn("x", tools=["read_file"], cwd=folder, thinking="low")
        for model in models:
            await agent.set_model(model)
            assert (await agent.query("Read it")).text == f"As {model.partition(':')[2]}."
        copy = await agent.session.fork((await agent.session.tree()).leaf)
        await copy.set_model(SONNET)
        await copy.query("Read it")
        assert server.refused == []
        sent = [len(reasoning_in(request)) for request in server.requests]
    per_response = 1 if models[0] == LUNA else 2
    assert sent[:2] == [0, per_response]
    assert sent[2] == 0
    if models[0] == models[2]:
        assert sent[4:6] == [2 * per_response, 3 * per_response]


@pytest.mark.parametrize("peer", [MESSAGES, RESPONSES], ids=["messages", "responses"])
async def test_refused_reasoning_is_left_out_and_the_request_is_repeated_once(
    server: ModelServer, begin: Begin, peer: Peer, capsys: pytest.CaptureFixture[str]
) -> None:
    """The blocks of an unknown model are sent, refused, and left out from then on. New reasoning stays."""
    talk = begin(peer)
    raw = {"type": "reasoning", "id": "rs_9", "summary": [], "encrypted_content": "expired"}
    block = EXPIRED if peer == MESSAGES else Opaque("openai", raw)
    talk.backend.load([user("hi"), Message("assistant", (block, Text("Well.")))])
    server.script += [call({"call": "weather", "input": {}}, thinking="Mine."), say("ok"), say("fine")]
    turn = await talk.ask()
    assert [retry.seconds for retry in talk.retries] == talk.waits == [0.0]
    talk.answer(turn)
    await talk.turn()
    await talk.ask()
    assert len(server.refused) == 1
    assert [len(reasoning_in(request)) for request in server.requests] == [1, 0, 1, 1]
    assert capsys.readouterr().out.count("refused signed reasoning in the conversation") == 1
    first, second = (request.body for request in server.requests[2:4])
    for body in (first, second):
        rows = body.get("messages") or body["input"]
        assert "expired" not in json.dumps(rows)
    assert json.dumps(second).startswith(json.dumps(first)[:200])


@pytest.mark.parametrize("peer", [MESSAGES, RESPONSES], ids=["messages", "responses"])
async def test_refusal_without_reasoning_in_the_request_is_an_error(
    server: ModelServer, begin: Begin, peer: Peer
) -> None:
    """Only a request that contains reasoning is repeated, and only once."""
    refusal = fail(400, "invalid_request_error", "messages.1.content.0: Invalid `signature` in `thinking` block")
    server.script += [refusal, refusal, say("ok")]
    talk = begin(peer)
    with pytest.raises(BackendError, match="Invalid `signature`"):
        await talk.ask()
    assert len(server.requests) == 1
    talk.backend.load([user("hi"), Message("assistant", (Thinking("x", "y", "theirs"), Text("Well.")))])
    with pytest.raises(BackendError, match="Invalid `signature`"):
        await talk.ask()
    assert len(server.requests) == 2


@pytest.mark.parametrize(
    "message",
    [
        "messages.1.content.0: Invalid `signature` in `thinking` block",
        "messages.3: `thinking` or `redacted_thinking` blocks in the latest assistant message cannot be modified.",
        "messages.1.content.0.thinking.signature: Field required",
        "messages.1.content.1: Invalid `data` in `redacted_thinking` block",
        "The encrypted content gAAA... could not be verified. Reason: Encrypted content could not be decrypted.",
        "Item 'rs_68' of type 'reasoning' was provided without its required following item.",
        "Item with id 'rs_68' not found. Items are not persisted when `store` is set to false.",
        "Corrupted thought signature.",
    ],
)
async def test_refusals_of_reasoning_are_recognized(server: ModelServer, begin: Begin, message: str) -> None:
    server.script += [Answer(blocks=({"thinking": "Hm."}, {"text": "a"})), fail(400, "x", message), say("ok")]
    talk = begin(MESSAGES)
    await talk.ask()
    await talk.ask()
    assert [len(reasoning_in(request)) for request in server.requests] == [0, 1, 0]


async def test_refused_reasoning_is_reported_to_watchers(server: ModelServer, folder: Path) -> None:
    """The turn emits one event `retry`. Further turns of the process are not refused."""
    history = [user("hi"), Message("assistant", (EXPIRED, Text("Well.")))]
    async with AsyncOrchestrator(SONNET, home=folder / "home", env=environment(server), **fake_world()) as root:
        agent = await root.spawn("x", tools=[], cwd=folder, history=history)
        kinds: list[str] = []
        reply = await agent.query("Go on", on_event=lambda event: kinds.append(event.kind))
        assert (reply.text, kinds.count("retry")) == ("done", 1)
        await agent.query("And?")
        assert len(server.refused) == 1


async def test_series_of_calls_without_thinking_is_continued_without_thinking(
    server: ModelServer, begin: Begin
) -> None:
    """The API refuses thinking for an unfinished series of calls that another model began. The next turn thinks."""
    peer = replace(MESSAGES, model="claude-haiku-4-5")
    talk = begin(peer, body={"thinking": {"type": "enabled", "budget_tokens": 2048}})
    other = Thinking("Hm.", sign("Hm."), "anthropic", "claude-opus-4-8")
    use = Message("assistant", (other, ToolUse("a", "weather", {})))
    talk.backend.load([user("hi"), use, Message("user", (ToolResult("a", (Text("wet"),)),))])
    server.script += [
        call({"call": "weather", "input": {}}),
        say("ok"),
        call({"call": "weather"}, thinking="So."),
        say("ok"),
    ]
    talk.answer(await talk.turn())
    await talk.turn()
    talk.answer(await talk.ask())
    await talk.turn()
    assert ["thinking" in request.body for request in server.requests] == [False, False, True, True]
    assert server.refused == []


async def test_calls_of_another_model_have_reasoning_for_a_server_that_requires_it(
    server: ModelServer, begin: Begin
) -> None:
    """Moonshot refuses calls without reasoning. A text that states this is sent with calls of other models."""
    talk = begin(KIMI)
    use = Message(
        "assistant", (Thinking("Hm.", sign("Hm."), "anthropic", "claude-opus-4-8"), ToolUse("a", "weather", {}))
    )
    talk.backend.load(
        [user("hi"), use, Message("user", (ToolResult("a", (Text("wet"),)),)), Message("assistant", (Text("x"),))]
    )
    await talk.ask()
    sent = [row.get("reasoning_content") for row in server.requests[0].body["messages"] if row["role"] == "assistant"]
    assert sent == ["(not recorded)", None]
    assert server.refused == []
