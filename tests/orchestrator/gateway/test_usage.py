"""The gateway reads the token counts in responses and passes the responses on unchanged."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from orch_worker.backends.models import load
from orchestrator.gateway.gateway_world import ChatClient, Client, MessagesClient, ResponsesClient, Worker, World
from wire.model_server import call, say

Worlds = Callable[..., World]
MODEL = "claude-sonnet-5-5"
USAGE = {"input": 700, "cache_read": 300, "cache_write": 50, "output": 9}


def counts_of(world: World) -> tuple[int, int, int, int]:
    """Return the tokens in the receipt: of requests, read from the cache, written to it, and of responses."""
    total = world.gateway.receipt().total
    return total.sent_tokens, total.cache_read_tokens, total.cache_write_tokens, total.output_tokens


def answered(world: World, client: Client, pieces: int = 0) -> tuple[bytes, bytes]:
    """Send a request. Return what the client got, and what the server sent.

    `pieces` is the size of the pieces of the stream; 0 means a response without streaming.
    """
    exchange = world.gateway.begin(client.path, client.headers, body := client.body(stream=bool(pieces)))
    assert exchange.unchanged
    assert exchange.reads
    answer = say('The word is usage, or "usage".')
    answer.usage = USAGE
    if not pieces:
        sent = json.dumps(client.rules.whole(answer, json.loads(body), world)).encode()
        return exchange.read(sent), sent
    sent = b"".join(client.rules.events(answer, json.loads(body), world))
    received = b"".join(exchange.feed(sent[start : start + pieces]) for start in range(0, len(sent), pieces))
    return received + exchange.end(), sent


@pytest.mark.parametrize("pieces", [0, 1, 7, 100_000], ids=["whole", "bytes", "pieces", "stream"])
@pytest.mark.parametrize("mode", ["on", "off"])
def test_usage_is_read_and_the_response_is_unchanged(client: Client, world: Worlds, pieces: int, mode: str) -> None:
    """The counts of a response are read whole and from streams in pieces of any size, also with the mode "off"."""
    client.say("Hello.")
    if isinstance(client, ChatClient):
        client.fields["stream_options"] = {"include_usage": True}
    made = world(mode=mode)
    received, sent = answered(made, client, pieces)
    assert received == sent
    assert counts_of(made) == (1050, 300, 50, 9)


def test_every_response_of_an_exchange_is_counted(client: Client, world: Worlds) -> None:
    """A recall needs a second response, which has its own counts."""
    made = world(Worker())
    made.turns(client, 8)
    client.say("And now?")
    if isinstance(client, ChatClient):
        client.fields["stream_options"] = {"include_usage": True}
    answers = [call({"call": "search_archive", "input": {"query": "result"}}), say("Here.")]
    for number, answer in enumerate(answers):
        answer.usage = {"input": 1000 + number, "output": 10 + number}
    made.answer = lambda _: answers.pop(0)
    exchange = made.gateway.begin(client.path, client.headers, client.body())
    made.stream(exchange, client)
    assert counts_of(made) == (2001, 0, 0, 21)
    assert made.gateway.receipt().total.recalls == 1


@pytest.mark.parametrize(
    "usage",
    [None, 7, [], {}, {"input_tokens": "many"}, {"input_tokens": -5, "output_tokens": True}, {"input_tokens": 1e99}],
)
def test_unusable_counts_are_zero(world: Worlds, usage: Any) -> None:
    """A server can report anything; the response passes unchanged."""
    client = MessagesClient()
    client.say("Hello.")
    made = world()
    exchange = made.gateway.begin(client.path, client.headers, client.body(stream=False))
    body = json.dumps({"content": [], "usage": usage}).encode()
    assert exchange.read(body) == body
    assert counts_of(made) == (0, 0, 0, 0)
    assert made.warnings == []


def test_writes_for_an_hour_cost_more(world: Worlds) -> None:
    """A cache write for one hour costs twice the input price, one for five minutes 1.25 times the input price."""
    client = MessagesClient(model=MODEL)
    client.say("Hello.")
    made = world()
    exchange = made.gateway.begin(client.path, client.headers, client.body())
    start = {
        "input_tokens": 3,
        "cache_creation_input_tokens": 90,
        "cache_creation": {"ephemeral_5m_input_tokens": 20, "ephemeral_1h_input_tokens": 70},
        "output_tokens": 1,
    }
    for event in (
        {"type": "message_start", "message": {"usage": start}},
        {"type": "message_delta", "delta": {}, "usage": {"output_tokens": 40}},
    ):
        exchange.feed(b"data: " + json.dumps(event).encode() + b"\r\n\r\n")
    exchange.end()
    assert counts_of(made) == (93, 0, 90, 40)
    price = load().look_up("anthropic", MODEL).price_at(0)
    assert price.input
    assert price.output
    units = price.input * (3 + 1.25 * 20 + 2 * 70) + price.output * 40
    assert made.gateway.receipt().total.cost_usd == pytest.approx(units / 1e6)


def test_counts_of_a_broken_stream_are_kept(world: Worlds) -> None:
    """If the server breaks off within an event, the counts before it are kept, and the client gets all bytes."""
    client = MessagesClient()
    client.say("Hello.")
    made = world()
    exchange = made.gateway.begin(client.path, client.headers, client.body())
    start = b'data: {"type":"message_start","message":{"usage":{"input_tokens":3}}}\n\n'
    received = exchange.feed(start) + exchange.feed(b'data: {"type": "mess') + exchange.end()
    assert received == start + b'data: {"type": "mess'
    assert counts_of(made) == (3, 0, 0, 0)


def test_counts_in_a_last_line_without_an_end_are_read(world: Worlds) -> None:
    """Some servers leave out the end of the last line."""
    client = ResponsesClient()
    client.say("Hello.")
    made = world()
    exchange = made.gateway.begin(client.path, client.headers, client.body())
    event = {"type": "response.completed", "response": {"usage": {"input_tokens": 3, "output_tokens": 2}}}
    exchange.feed(b"data: " + json.dumps(event).encode())
    exchange.end()
    assert counts_of(made) == (3, 0, 0, 2)


def test_counts_of_a_response_that_the_client_left_are_kept(world: Worlds) -> None:
    """The server bills the beginning of a response too. Closing an exchange again changes nothing."""
    client = MessagesClient()
    client.say("Hello.")
    made = world()
    exchange = made.gateway.begin(client.path, client.headers, client.body())
    exchange.feed(b'data: {"type":"message_start","message":{"usage":{"input_tokens":3}}}\n\n')
    exchange.close()
    exchange.close()
    assert counts_of(made) == (3, 0, 0, 0)
    assert made.gateway.receipt().total.requests == 1


def test_count_requests_are_not_counted(world: Worlds) -> None:
    """A request for a number of tokens costs nothing."""
    client = MessagesClient()
    client.say("Hello.")
    assert not world().gateway.begin("/v1/messages/count_tokens", client.headers, client.body()).reads


def test_responses_of_any_size_pass(world: Worlds) -> None:
    """An event of the Responses API contains the whole response; its counts are read from many pieces."""
    client = ResponsesClient()
    client.say("Hello.")
    made = world()
    exchange = made.gateway.begin(client.path, client.headers, client.body())
    response = {"output": ["x" * 3_000_000], "usage": {"input_tokens": 5, "output_tokens": 2}}
    event = b"data: " + json.dumps({"type": "response.completed", "response": response}).encode() + b"\n\n"
    received = b"".join(exchange.feed(event[start : start + 65536]) for start in range(0, len(event), 65536))
    assert received + exchange.end() == event
    assert counts_of(made) == (5, 0, 0, 2)
