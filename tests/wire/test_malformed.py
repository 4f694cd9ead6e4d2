"""Responses of broken and hostile servers with the real SDKs: each leads to an answer or a readable error."""

from __future__ import annotations

import gzip
import json
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from orch import AsyncOrchestrator
from orch.testing import fake_world
from orch_protocol.core.errors import BackendError, BackendTimeoutError
from orch_protocol.core.messages import Message, Text, text_of
from orch_protocol.policy.budget import BudgetAmounts, amounts_of
from orch_worker.backends import models
from orch_worker.backends.formats.server_sent_events import ServerSentEvent
from orch_worker.backends.http.transport import Deadlines, ResponseLimits
from wire.api_backends import CHAT, KIMI, MESSAGES, PEERS, RESPONSES, Peer, Talk
from wire.model_server import Answer, ModelServer, call, fail, say
from wire.rules import sse
from wire.test_end_to_end import MODEL, environment

Begin = Callable[..., Talk]


def stream(*events: Any) -> tuple[bytes, ...]:
    """Return `events` as a server sends them. Bytes are sent unchanged."""
    kinds = (event.get("type") if isinstance(event, dict) else None for event in events)
    return tuple(
        event if isinstance(event, bytes) else sse(event, kind if isinstance(kind, str) else "message_delta")
        for event, kind in zip(events, kinds, strict=True)
    )


def start(usage: Any = None) -> dict[str, Any]:
    """Return the first event of the Messages API."""
    usage = {"input_tokens": 10, "output_tokens": 1} if usage is None else usage
    return {"type": "message_start", "message": {"id": "m", "content": [], "usage": usage}}


def delta(index: Any, **more: Any) -> dict[str, Any]:
    """Return a delta of the Messages API."""
    return {"type": "content_block_delta", "index": index, "delta": more}


def block(index: Any, content: Any) -> dict[str, Any]:
    """Return the start of a block of the Messages API."""
    return {"type": "content_block_start", "index": index, "content_block": content}


def chunk(delta: Any, finish: Any = None, **more: Any) -> dict[str, Any]:
    """Return a chunk of Chat Completions."""
    return {"id": "c", "choices": [{"index": 0, "delta": delta, "finish_reason": finish}], **more}


def item(content: Any, index: Any = 0) -> dict[str, Any]:
    """Return a finished item of the Responses API."""
    return {"type": "response.output_item.done", "output_index": index, "item": content}


STOP = {"type": "message_delta", "delta": {"stop_reason": "end_turn"}, "usage": {"output_tokens": 1}}
END = {"type": "message_stop"}
TEXT = {"type": "text", "text": ""}
DEEP = b"data: " + b"[" * 100_000 + b"\n\n"
COMPLETED = {"type": "response.completed", "response": {"status": "completed", "usage": None}}
MALFORMED: dict[str, list[tuple[bytes, ...]]] = {
    "messages": [
        stream(start(), delta(7, type="text_delta", text="x"), STOP, END),
        stream(start(), delta([1], type="text_delta", text="x"), STOP, END),
        stream(start(), block(0, TEXT), delta(0, type="text_delta"), STOP, END),
        stream(start(), block(0, TEXT), delta(0, type="text_delta", text=5), STOP, END),
        stream(start(), block(0, TEXT), {"type": "content_block_delta", "index": 0}, STOP, END),
        stream(start(), block(0, TEXT), {"type": "content_block_delta", "index": 0, "delta": "x"}, STOP, END),
        stream(start(), block(0, "text"), STOP, END),
        stream(start(), block(0, {"type": "tool_use", "id": 7, "name": "w", "input": {}}), STOP, END),
        stream(start(), block(0, {"type": "tool_use", "id": "a", "name": None, "input": {}}), STOP, END),
        stream(start(), block(0, {"type": "tool_use"}), STOP, END),
        stream(start(), block(0, {"type": "thinking"}), STOP, END),
        stream(start(), block(0, TEXT), block("1", TEXT), STOP, END),
        stream(start(), {"type": "message_delta", "delta": None}, END),
        stream(start(), {"type": "message_delta", "delta": {"stop_reason": ["end_turn"]}}, END),
        stream({"type": "message_start"}, END),
        stream([], 5, "text", None, True),
        stream({"type": 7}, {"type": ["message_stop"]}, {}),
        stream(b"event: message_start\ndata: {\n\n"),
        stream(b"event: message_start\ndata: \xff\xfe\n\n"),
        stream(b"event: message_start\n" + DEEP),
        stream(b"\x00" * 1000),
        stream(b"<html><body>502</body></html>"),
        stream({"type": "error", "error": {"type": 7, "message": ["x"]}}),
        stream(b"event: error\ndata: not json\n\n"),
        stream(b"event: error\ndata: [1]\n\n"),
        stream(),
    ],
    "chat": [
        stream({"choices": 5}),
        stream({"choices": {"index": 0}}),
        stream({"choices": ["x"]}),
        stream({"choices": [None]}),
        stream(chunk("x", "stop")),
        stream(chunk({"content": 5}, "stop")),
        stream(chunk({"content": ["x"]}, "stop")),
        stream(chunk({"tool_calls": 5}, "stop")),
        stream(chunk({"tool_calls": ["x"]}, "stop")),
        stream(chunk({"tool_calls": [{"index": 0, "id": 7, "function": {"name": "w", "arguments": "{}"}}]}, "stop")),
        stream(chunk({"tool_calls": [{"index": 0, "id": "a", "function": {"name": 7}}]}, "stop")),
        stream(chunk({"tool_calls": [{"index": 0, "id": "a", "function": "w"}]}, "stop")),
        stream(chunk({}, {"reason": "stop"})),
        stream(chunk({}, ["stop"])),
        stream([], 5, "text", None, True),
        stream(b"data: {\n\n"),
        stream(b"data: \xff\n\n"),
        stream(DEEP),
        stream(b"\x00" * 1000),
        stream(b"<html><body>502</body></html>"),
        stream({"error": "overloaded"}),
        stream({"error": {"message": 5, "code": 529, "type": ["x"]}}),
        stream(b"data: [DONE]\n\n"),
        stream(),
    ],
    "responses": [
        stream(item("x"), COMPLETED),
        stream(item(None), COMPLETED),
        stream(item({"type": "message"}), COMPLETED),
        stream(item({"type": "message", "content": "x"}), COMPLETED),
        stream(item({"type": "message", "content": [{"text": 5}]}), COMPLETED),
        stream(item({"type": "function_call"}), COMPLETED),
        stream(item({"type": "function_call", "call_id": 7, "name": "w", "arguments": "{}"}), COMPLETED),
        stream(item({}, [0]), COMPLETED),
        stream({"type": "response.output_item.done"}, COMPLETED),
        stream({"type": "response.output_text.delta"}, COMPLETED),
        stream({"type": "response.completed"}),
        stream({"type": "response.completed", "response": "x"}),
        stream({"type": "response.failed", "response": None}),
        stream({"type": "response.failed", "response": {"error": "x"}}),
        stream({"type": "response.failed", "response": {"error": {"code": 5, "message": ["x"]}}}),
        stream({"type": "response.incomplete", "response": {"status": "incomplete", "incomplete_details": "x"}}),
        stream({"type": "error", "code": ["x"], "message": {"a": 1}}),
        stream([], 5, "text", None, True),
        stream(b"data: {\n\n"),
        stream(b"data: \xff\n\n"),
        stream(DEEP),
        stream(b"<html><body>502</body></html>"),
        stream(),
    ],
}
UNREADABLE = ("KeyError", "TypeError", "AttributeError", "IndexError", "object has no attribute", "NoneType")


@pytest.mark.parametrize(
    ("api", "number"), [(api, number) for api in MALFORMED for number in range(len(MALFORMED[api]))]
)
async def test_malformed_stream_is_retried_or_a_readable_error(
    server: ModelServer, begin: Begin, api: str, number: int
) -> None:
    """A malformed stream is retried or raises BackendError. The error does not show an internal Python error."""
    server.script += [Answer(raw=MALFORMED[api][number]), say("well")]
    talk = begin(PEERS[api])
    try:
        turn = await talk.ask()
    except BackendError as error:
        errors: list[BackendError] = [error]
    else:
        assert text_of(turn.message) == "well"
        assert len(talk.retries) == 1
        errors = [talk.retries[0].error]
    assert not [word for word in UNREADABLE if word in str(errors[0])], str(errors[0])
    assert server.refused == []


async def test_event_for_an_unknown_block_is_named(server: ModelServer, begin: Begin) -> None:
    """The error for an event of an unknown block contains the event, the block and the server."""
    server.script += [Answer(raw=MALFORMED["messages"][0]), say("well")]
    talk = begin(MESSAGES)
    await talk.ask()
    error_text = str(talk.retries[0].error)
    assert f"{server.url} sent a malformed response" in error_text
    assert "content_block_delta for block 7, which was not started" in error_text


class TestRedirects:
    """Redirects are followed only within one origin."""

    @pytest.mark.parametrize("status", [301, 302, 307, 308])
    async def test_redirect_to_another_origin_is_not_followed(
        self, server: ModelServer, talk: Talk, peer: Peer, status: int
    ) -> None:
        """The error names both origins and the setting, and the other server gets no request."""
        async with ModelServer() as other:
            server.script.append(fail(status, location=f"{other.url}{peer.path}"))
            with pytest.raises(BackendError) as caught:
                await talk.ask()
            assert (other.connections, len(server.requests)) == (0, 1)
            error_text = str(caught.value)
            assert f"{server.url} redirects to {other.url}" in error_text
            assert f"set {peer.provider.upper()}_BASE_URL" in error_text

    async def test_redirect_within_an_origin_is_followed(self, server: ModelServer, talk: Talk, peer: Peer) -> None:
        """A redirect to another path of the same server leads to the answer."""
        server.script += [fail(307, location=peer.path), say("moved")]
        assert text_of((await talk.ask()).message) == "moved"


class TestLimits:
    """Limits for the size of a response and of each event, counted after decompression."""

    async def test_oversized_response_is_aborted(self, server: ModelServer, talk: Talk) -> None:
        """A response that exceeds the limit is an error without a retry."""
        talk.backend.limits = ResponseLimits(response=100_000)
        server.script.append(say("x" * 200_000))
        with pytest.raises(BackendError, match="a response of more than 100,000 bytes"):
            await talk.ask()
        assert talk.retries == []

    async def test_oversized_event_is_aborted(self, server: ModelServer, talk: Talk) -> None:
        """An event that exceeds the limit is an error without a retry, even if its line never ends."""
        talk.backend.limits = ResponseLimits(event=100_000)
        server.script.append(Answer(raw=(b"data: ", *(b"x" * 10_000 for _ in range(20)))))
        with pytest.raises(BackendError, match="a server-sent event of more than 100,000 bytes"):
            await talk.ask()
        assert talk.retries == []

    async def test_many_small_events_are_not_an_oversized_one(self, server: ModelServer, begin: Begin) -> None:
        """The limit counts each event separately, even if the stream arrives in pieces of three bytes."""
        talk = begin(CHAT)
        talk.backend.limits = ResponseLimits(event=2_000)
        server.script.append(say("", crumbs=3))
        server.script[0].blocks = tuple({"text": f"{number} "} for number in range(40))
        await talk.ask()
        assert talk.retries == []

    async def test_oversized_error_page_is_aborted(self, server: ModelServer, talk: Talk) -> None:
        """The limit for responses is also the limit for the bodies of error responses."""
        talk.backend.limits = ResponseLimits(response=100_000)
        server.script.append(fail(400, "invalid_request_error", "x" * 200_000))
        with pytest.raises(BackendError, match="more than 100,000 bytes"):
            await talk.ask()

    async def test_compressed_stream_is_read(self, server: ModelServer, begin: Begin) -> None:
        """A stream with gzip compression becomes the same answer as an uncompressed stream."""
        events = stream(chunk({"content": "hello"}), chunk({}, "stop"), b"data: [DONE]\n\n")
        packed = gzip.compress(b"".join(events))
        server.script.append(Answer(raw=(packed[:20], packed[20:]), headers={"content-encoding": "gzip"}))
        assert text_of((await begin(CHAT).ask()).message) == "hello"

    async def test_compressed_bomb_uses_bounded_memory(self, server: ModelServer, talk: Talk) -> None:
        """64 KB that decompress to 64 MB are decompressed in small steps, only up to the limit."""
        bomb = gzip.compress(b"data: " + b"\0" * (1 << 26), 9)
        server.script.append(Answer(raw=(bomb,), headers={"content-encoding": "gzip"}))
        talk.backend.limits = ResponseLimits(event=1 << 20)
        tracemalloc.start()
        try:
            with pytest.raises(BackendError, match="event of more than 1,048,576 bytes"):
                await talk.ask()
            assert tracemalloc.get_traced_memory()[1] < 16 << 20
        finally:
            tracemalloc.stop()

    @pytest.mark.parametrize("encoding", ["gzip", "br"])
    async def test_wrong_content_encoding_is_an_error(self, server: ModelServer, begin: Begin, encoding: str) -> None:
        """A stream with a wrong or unrequested encoding is retried, and the error names the encoding."""
        server.script += [Answer(raw=(b"data: {}\n\n",), headers={"content-encoding": encoding}), say("well")]
        talk = begin(CHAT)
        assert text_of((await talk.ask()).message) == "well"
        assert encoding in str(talk.retries[0].error)

    async def test_thirty_megabyte_answer_is_read(self, server: ModelServer, begin: Begin) -> None:
        """An answer of 30 MB does not exceed the default limits."""
        server.script.append(say("x" * 30_000_000))
        assert len(text_of((await begin(CHAT).ask()).message)) == 30_000_000


class TestContent:
    """Deadlines for content. Keep-alive messages are not content."""

    @pytest.mark.parametrize("after", [0, 2])
    async def test_pings_do_not_extend_the_content_deadline(self, server: ModelServer, talk: Talk, after: int) -> None:
        """A stream that sends only comments, empty lines and ping events times out and is retried."""
        talk.backend.deadlines = Deadlines(first=60.0, idle=60.0, content=0.3)
        server.script += [say("half", after=after, how="pings"), say("whole")]
        assert text_of((await talk.ask()).message) == "whole"
        assert isinstance(talk.retries[0].error, BackendTimeoutError)
        assert "sent no content for 0.3 s (first_content_seconds" in str(talk.retries[0].error)

    async def test_empty_chunks_do_not_extend_the_content_deadline(self, begin: Begin) -> None:
        """A chunk without new content is not counted as progress."""
        talk = begin(CHAT)
        reading = talk.backend._format.new_reader("openai")
        for empty in ({"choices": []}, chunk({}), chunk({"role": "assistant", "content": ""}), {"object": "x"}):
            reading.feed(ServerSentEvent("", json.dumps(empty)))
        assert reading.progress == 0
        reading.feed(ServerSentEvent("", json.dumps(chunk({"reasoning": "hm"}))))
        assert reading.progress == 1

    @pytest.mark.parametrize(
        ("model", "content", "thinking"),
        [(CHAT, 300.0, 0.0), (KIMI, 1800.0, 0.0), (MESSAGES, 1800.0, 0.0), (RESPONSES, 1800.0, 1800.0)],
    )
    async def test_reasoning_models_have_a_longer_content_deadline(
        self, begin: Begin, model: Peer, content: float, thinking: float
    ) -> None:
        """Models that reason have a longer deadline for content.

        Models with the Responses API also have a longer deadline for thinking, because this API sends nothing while a
        model reasons.
        """
        deadlines = begin(model).backend.deadlines
        assert (deadlines.content, deadlines.thinking) == (content, thinking)

    async def test_content_deadline_is_a_model_option(self, begin: Begin) -> None:
        """The option `first_content_seconds` of a model sets its deadline for content."""
        assert begin(CHAT, first_content_seconds=5.0).backend.deadlines.content == 5.0


HUGE = 10**30
ABSURD: list[Any] = [
    -1, -1000, -(2**63), -HUGE, 2**31, 2**53, 2**63, 2**64, HUGE, 10**300,
    None, True, False, 1.5, -0.5, 1e300, float("nan"), float("inf"), -float("inf"),
    "", "12", "many", [], [5], {}, {"value": 5},
]  # fmt: skip


def usage_stream(peer: Peer, input: Any, output: Any) -> Answer:
    """Return an answer that reports `input` and `output` as its usage."""
    if peer == MESSAGES:
        ended = STOP | {"usage": {"input_tokens": input, "output_tokens": output}}
        return Answer(raw=stream(start({}), block(0, TEXT), delta(0, type="text_delta", text="hello"), ended, END))
    fields = {"prompt_tokens": input, "completion_tokens": output, "input_tokens": input, "output_tokens": output}
    if peer == CHAT:
        return Answer(raw=stream(chunk({"content": "hello"}), chunk({}, "stop"), {"choices": [], "usage": fields}))
    found = item({"type": "message", "content": [{"type": "output_text", "text": "hello"}]})
    ended = {"type": "response.completed", "response": {"status": "completed", "usage": fields}}
    return Answer(raw=stream(found, ended))


@pytest.mark.parametrize("value", ABSURD, ids=lambda value: f"{value!r:.20}")
async def test_absurd_usage_is_clamped_and_marked(
    server: ModelServer, talk: Talk, peer: Peer, value: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    """Absurd numbers are limited to the range from 0 to the context window, and other values are estimated.

    The cost is marked as unknown, and one warning is printed.
    """
    server.script += [usage_stream(peer, value, value), usage_stream(peer, value, value)]
    turn = await talk.ask()
    window = models.load().look_up(peer.provider, peer.model).context
    charged = amounts_of(turn.usage)
    assert 0 <= charged.tokens <= 2 * window
    assert 0 <= charged.usd < 100
    assert not turn.usage.cost_known
    numbers = (turn.usage.input_tokens, turn.usage.output_tokens)
    assert all(type(number) is int for number in numbers)
    if isinstance(value, bool) or not isinstance(value, int):
        estimate = talk.backend.estimator.message(Message("assistant", (Text("hello"),)))
        assert numbers[1] == estimate
        assert 10 < numbers[0] < 1000
    else:
        assert numbers == ((window, window) if value > 0 else (0, 0))
    await talk.ask()
    assert capsys.readouterr().out.count("unusable token counts") == 1
    assert talk.backend.context_tokens() < 1000


async def test_missing_usage_is_estimated(server: ModelServer, begin: Begin) -> None:
    """If the server reports no usage, the tokens are estimated and the cost is marked as unknown."""
    server.script.append(Answer(raw=stream(chunk({"content": "hello"}), chunk({}, "stop"), b"data: [DONE]\n\n")))
    usage = (await begin(CHAT).ask()).usage
    assert usage.input_tokens > 10
    assert usage.output_tokens > 0
    assert not usage.cost_known


@pytest.mark.parametrize("cached", [-5, HUGE, "5", True, 1.5, [], {}])
async def test_absurd_cached_token_counts_are_clamped(server: ModelServer, begin: Begin, cached: Any) -> None:
    """Input tokens and cached tokens are never negative, and their sum is the reported number of tokens."""
    fields = {"prompt_tokens": 100, "completion_tokens": 5, "prompt_tokens_details": {"cached_tokens": cached}}
    server.script.append(
        Answer(raw=stream(chunk({"content": "x"}), chunk({}, "stop"), {"choices": [], "usage": fields}))
    )
    usage = (await begin(CHAT).ask()).usage
    assert usage.input_tokens + usage.cache_read_tokens == 100
    assert min(usage.input_tokens, usage.cache_read_tokens) >= 0
    assert not usage.cost_known


async def test_absurd_usage_of_a_failed_attempt_is_clamped(server: ModelServer, begin: Begin) -> None:
    """Absurd usage of a failed attempt is limited before it is added to the next response."""
    broken = stream(start({"input_tokens": HUGE, "output_tokens": -HUGE}), block(0, TEXT))
    server.script += [Answer(raw=broken), say("well")]
    talk = begin(MESSAGES)
    talk.backend.reserved = BudgetAmounts(tokens=10_000_000.0)
    usage = (await talk.ask()).usage
    window = talk.backend.model.context
    assert 0 <= usage.input_tokens <= 2 * window
    assert 0 <= usage.output_tokens <= window


async def test_budget_survives_absurd_usage(server: ModelServer, tmp_path: Path) -> None:
    """With absurd usage, each turn adds a small positive amount to the spent budget, and the agent continues."""
    async with AsyncOrchestrator(MODEL, home=tmp_path, env=environment(server), **fake_world()) as root:
        for value in ABSURD:
            answer = usage_stream(MESSAGES, value, value)
            server.otherwise = lambda _, answer=answer: answer  # type: ignore[misc]
            agent = await root.spawn("x", max_cost=100.0)
            spent = 0.0
            for _ in range(2):
                reply = await agent.query("hi")
                now = (await agent.state()).spent.usd
                assert spent < now < spent + 20, value
                assert reply.usage.cost_usd == pytest.approx(now - spent)
                assert not reply.usage.cost_known
                spent = now
            assert (reply.stop_reason, reply.text) == ("end_turn", "hello"), value
            await agent.kill()


class TestCompatibleServers:
    """Servers that implement the APIs of OpenAI, and refuse fields and messages that they do not support."""

    @pytest.mark.parametrize("peer", [CHAT, RESPONSES, KIMI], ids=["chat", "responses", "kimi"])
    async def test_compatible_servers_accept_every_request(self, peer: Peer) -> None:
        """Requests contain no field that only OpenAI accepts, and no system message after the first message."""
        async with ModelServer(compatible=True) as server:
            talk = peer.talk(server)
            server.script += [call({"call": "weather", "input": {}}), say("ok")]
            talk.backend.load([Message("user", (Text("hi"),)), Message("system", (Text("Be kind."),))])
            talk.backend.tail = "What is live."
            turn = await talk.ask()
            talk.answer(turn)
            await talk.turn()
            await talk.backend.close()
            assert server.refused == []
            assert b"Be kind." in server.requests[0].raw

    @pytest.mark.parametrize(
        ("url", "own"),
        [
            ("https://api.openai.com/v1", True),
            ("https://eu.api.openai.com/v1", True),
            ("https://openai.com.example/v1", False),
            ("https://notopenai.com/v1", False),
            ("http://127.0.0.1:8000/v1", False),
        ],
    )
    @pytest.mark.parametrize("peer", [CHAT, RESPONSES], ids=["chat", "responses"])
    async def test_openai_only_fields_depend_on_the_host(self, begin: Begin, peer: Peer, url: str, own: bool) -> None:
        """Only requests to hosts of OpenAI contain `store` and `prompt_cache_key`."""
        talk = begin(peer, base_url=url)
        talk.backend.append_user((Text("hi"),))
        body = talk.backend._format.request(talk.backend._make_request())
        assert {"store", "prompt_cache_key"} <= set(body) if own else not {"store", "prompt_cache_key"} & set(body)
