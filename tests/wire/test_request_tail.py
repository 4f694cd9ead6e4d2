"""The tail of a request: it is sent last with each API, and does not change the cached prefix."""

from __future__ import annotations

import json
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import pytest

from orch_protocol.core.messages import Message, Text
from wire.api_backends import MESSAGES, RESPONSES, Peer, Talk
from wire.model_server import ModelServer, Request, call, say

Begin = Callable[..., Talk]
PARIS = {"call": "weather", "input": {"city": "Paris"}}
OSLO = {"call": "weather", "input": {"city": "Oslo"}}
BEFORE = "# Live Subagents\n- id: 1 | task: Look"
AFTER = "# Live Subagents\n- id: 2 | task: Find"


async def test_request_without_its_tail_is_a_prefix_of_the_next(server: ModelServer, talk: Talk, peer: Peer) -> None:
    """Without tail and cache markers, the next request begins with the whole request, byte by byte."""
    server.script += [call(PARIS, OSLO, text="Hm"), call(PARIS), say("wet"), say("bye")]
    tails = ["", BEFORE, AFTER, "third"]
    talk.backend.tail = tails[0]
    turn = await talk.ask()
    for tail in tails[1:3]:
        talk.answer(turn)
        talk.backend.tail = tail
        turn = await talk.turn()
    talk.backend.tail = tails[3]
    await talk.ask("bye")
    assert server.refused == []
    sent = [_without(request, tail, peer) for request, tail in zip(server.requests, tails, strict=True)]
    for earlier, later in pairwise(sent):
        assert later[: len(earlier)] == earlier


async def test_tail_ends_the_request(server: ModelServer, talk: Talk) -> None:
    """The current tail is sent once, after user text or results. An empty tail is not sent."""
    server.script.append(call(PARIS))
    talk.backend.tail = BEFORE
    turn = await talk.ask("weather?")
    talk.answer(turn, "rain")
    talk.backend.tail = AFTER
    await talk.turn()
    talk.backend.tail = " \n"
    await talk.ask()
    assert server.refused == []
    raws = [request.raw.decode() for request in server.requests]
    assert [(raw.count("Look"), raw.count("Find")) for raw in raws] == [(1, 0), (0, 1), (0, 0)]
    assert raws[0].index("weather?") < raws[0].index("Look")
    assert raws[1].index("rain") < raws[1].index("Find")


async def test_cache_markers_precede_the_tail(server: ModelServer, begin: Begin) -> None:
    """The last cache marker is on the block before the tail."""
    talk = begin(MESSAGES)
    talk.backend.tail = BEFORE
    await talk.ask()
    content = server.requests[0].body["messages"][-1]["content"]
    assert [(block["text"], "cache_control" in block) for block in content] == [("hi", True), (BEFORE, False)]


async def test_tail_follows_a_system_message(server: ModelServer, talk: Talk) -> None:
    """The tail is also sent if the conversation ends with a system message."""
    talk.backend.load([Message("user", (Text("hi"),)), Message("system", (Text("Be quick."),))])
    talk.backend.tail = BEFORE
    await talk.turn()
    assert server.refused == []
    assert b"Look" in server.requests[0].raw


async def test_tail_is_counted_but_not_stored(talk: Talk) -> None:
    """The tail counts as context tokens, but is not part of the conversation."""
    await talk.ask()
    before = talk.backend.context_tokens()
    talk.backend.tail = "x" * 400
    assert before + 50 < talk.backend.context_tokens() < before + 200
    await talk.ask("go on")
    assert all("xxx" not in repr(message) for message in talk.messages())


@pytest.mark.usefixtures("as_openai")
async def test_siblings_with_different_tails_share_a_cache_key(server: ModelServer, begin: Begin) -> None:
    """The cache key of a request does not depend on the tail."""
    for text in ("", BEFORE):
        talk = begin(RESPONSES)
        talk.backend.tail = text
        await talk.ask()
    keys = [request.body["prompt_cache_key"] for request in server.requests]
    assert keys[0] == keys[1]


def _without(request: Request, tail: str, peer: Peer) -> list[str]:
    """Return the parts of `request` without its tail and its cache markers."""
    body: dict[str, Any] = request.body
    messages = body.pop("input" if peer == RESPONSES else "messages")
    if tail:
        last = messages[-1]["content"].pop() if peer == MESSAGES else messages.pop()
        assert tail in (last.get("text"), last.get("content"), *(part.get("text") for part in _parts(last)))
    for message in messages:
        for block in _parts(message):
            block.pop("cache_control", None)
    return [json.dumps(body), *map(json.dumps, messages)]


def _parts(message: dict[str, Any]) -> list[dict[str, Any]]:
    content = message.get("content")
    return content if isinstance(content, list) else []
