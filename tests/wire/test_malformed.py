"""Responses of broken and hostile servers, read by the real SDKs: each ends in an answer or in a readable error."""

from __future__ import annotations

import gzip
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
from orch_worker.backends.http.transport import Deadlines, ResponseLimits
from wire.api_backends import CHAT, KIMI, MESSAGES, PEERS, RESPONSES, Peer, Talk
from wire.model_server import Answer, ModelServer, call, fail, say
from wire.rules import sse
from wire.test_end_to_end import MODEL, environment

Begin = Callable[..., Talk]


def stream(*events: Any) -> tuple[bytes, ...]:
    """Return events as a server sends them; bytes are sent as they are."""
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
        stream(start(), block(0, {"type": "tool_use", "id": "a", "name": "w", "input": [1]}), STOP, END),
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
        stream(chunk({"tool_calls": [{"index": 0, "id": "a", "function": {"name": "w", "arguments": {}}}]}, "stop"))
        + stream(chunk({"tool_calls": [{"index": 0, "id": "a", "function": {"arguments": {"a": 1}}}]}, "stop")),
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
        stream(item({"type": "function_call", "call_id": "a", "name": "w", "arguments": {}}), COMPLETED),
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
async def test_a_malformed_stream_is_asked_for_again_or_a_readable_error(
    server: ModelServer, begin: Begin, api: str, number: int
) -> None:
    """Whatever a server streams, the next attempt is answered, or the error is a BackendError with a readable text."""
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


async def test_an_event_for_an_unknown_block_is_named(server: ModelServer, begin: Begin) -> None:
    """The error says which event is wrong and where it came from."""
    server.script += [Answer(raw=MALFORMED["messages"][0]), say("well")]
    talk = begin(MESSAGES)
    await talk.ask()
    said = str(talk.retries[0].error)
    assert f"{server.url} sent a malformed response" in said
    assert "content_block_delta for block 7, which was not started" in said


class TestRedirects:
    """A model client follows redirects within one origin only."""

    @pytest.mark.parametrize("status", [301, 302, 307, 308])
    async def test_a_redirect_to_another_origin_is_not_followed(
        self, server: ModelServer, talk: Talk, peer: Peer, status: int
    ) -> None:
        """The error names both origins and the setting; the other server hears nothing, not even the key."""
        async with ModelServer() as other:
            server.script.append(fail(status, location=f"{other.url}{peer.path}"))
            with pytest.raises(BackendError) as caught:
                await talk.ask()
            assert (other.connections, len(server.requests)) == (0, 1)
            said = str(caught.value)
            assert f"{server.url} redirects to {other.url}" in said
            assert f"set {peer.provider.upper()}_BASE_URL" in said

    async def test_a_redirect_within_one_origin_is_followed(self, server: ModelServer, talk: Talk, peer: Peer) -> None:
        """A server may move its own paths."""
        server.script += [fail(307, location=peer.path), say("moved")]
        assert text_of((await talk.ask()).message) == "moved"


class TestLimits:
    """One response is bounded, as a whole and by event, after decompression."""

    async def test_a_response_that_is_too_large_is_given_up(self, server: ModelServer, talk: Talk) -> None:
        """It is not asked for again: the next one would cost as much."""
        talk.backend.limits = ResponseLimits(response=100_000)
        server.script.append(say("x" * 200_000))
        with pytest.raises(BackendError, match="a response of more than 100,000 bytes"):
            await talk.ask()
        assert talk.retries == []

    async def test_an_event_that_is_too_large_is_given_up(self, server: ModelServer, talk: Talk) -> None:
        """A line without an end is not collected in memory."""
        talk.backend.limits = ResponseLimits(event=100_000)
        server.script.append(Answer(raw=(b"data: ", *(b"x" * 10_000 for _ in range(20)))))
        with pytest.raises(BackendError, match="a server-sent event of more than 100,000 bytes"):
            await talk.ask()
        assert talk.retries == []

    async def test_many_small_events_are_no_large_one(self, server: ModelServer, begin: Begin) -> None:
        """Events are told apart however they are cut into pieces."""
        talk = begin(CHAT)
        talk.backend.limits = ResponseLimits(event=2_000)
        server.script.append(say("", crumbs=3))
        server.script[0].blocks = tuple({"text": f"{number} "} for number in range(40))
        await talk.ask()
        assert talk.retries == []

    async def test_an_error_page_that_is_too_large_is_given_up(self, server: ModelServer, talk: Talk) -> None:
        """Bodies of errors are bounded too."""
        talk.backend.limits = ResponseLimits(response=100_000)
        server.script.append(fail(400, "invalid_request_error", "x" * 200_000))
        with pytest.raises(BackendError, match="more than 100,000 bytes"):
            await talk.ask()

    async def test_a_compressed_stream_is_read(self, server: ModelServer, begin: Begin) -> None:
        """A server may compress what it streams."""
        events = stream(chunk({"content": "hello"}), chunk({}, "stop"), b"data: [DONE]\n\n")
        packed = gzip.compress(b"".join(events))
        server.script.append(Answer(raw=(packed[:20], packed[20:]), headers={"content-encoding": "gzip"}))
        assert text_of((await begin(CHAT).ask()).message) == "hello"

    async def test_a_compressed_bomb_takes_no_memory(self, server: ModelServer, talk: Talk) -> None:
        """Half a megabyte that unpacks to half a gigabyte is unpacked up to the limit, in small steps."""
        bomb = gzip.compress(b"data: " + b"\0" * (1 << 29), 9)
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
    async def test_a_body_that_is_not_what_it_says(self, server: ModelServer, begin: Begin, encoding: str) -> None:
        """An encoding that is wrong, or was not asked for, is an error that says so."""
        server.script += [Answer(raw=(b"data: {}\n\n",), headers={"content-encoding": encoding}), say("well")]
        talk = begin(CHAT)
        assert text_of((await talk.ask()).message) == "well"
        assert encoding in str(talk.retries[0].error)

    async def test_a_thirty_megabyte_answer_is_read(self, server: ModelServer, begin: Begin) -> None:
        """What is below the limit arrives whole."""
        server.script.append(say("x" * 30_000_000))
        assert len(text_of((await begin(CHAT).ask()).message)) == 30_000_000


class TestContent:
    """Keep-alive messages are no progress."""

    @pytest.mark.parametrize("after", [0, 2])
    async def test_pings_do_not_keep_a_request_alive(self, server: ModelServer, talk: Talk, after: int) -> None:
        """Comments, empty lines and ping events count for the connection, not for the answer."""
        talk.backend.deadlines = Deadlines(first=60.0, idle=60.0, content=0.3)
        server.script += [say("half", after=after, how="pings"), say("whole")]
        assert text_of((await talk.ask()).message) == "whole"
        assert isinstance(talk.retries[0].error, BackendTimeoutError)
        assert "sent no content for 0.3 s (first_content_seconds" in str(talk.retries[0].error)

    async def test_empty_chunks_are_no_content(self, begin: Begin) -> None:
        """A chunk that adds nothing is a ping under another name."""
        talk = begin(CHAT)
        reading = talk.backend._dialect.reading("openai")
        for empty in ({"choices": []}, chunk({}), chunk({"role": "assistant", "content": ""}), {"object": "x"}):
            reading.feed(empty)
        assert reading.progress == 0
        reading.feed(chunk({"reasoning": "hm"}))
        assert reading.progress == 1

    @pytest.mark.parametrize(
        ("model", "content", "thinking"),
        [(CHAT, 300.0, 0.0), (KIMI, 1800.0, 0.0), (MESSAGES, 1800.0, 0.0), (RESPONSES, 1800.0, 1800.0)],
    )
    async def test_reasoning_models_have_longer(
        self, begin: Begin, model: Peer, content: float, thinking: float
    ) -> None:
        """The deadline for content is one of the model; while it reasons, the Responses API sends nothing at all."""
        deadlines = begin(model).backend.deadlines
        assert (deadlines.content, deadlines.thinking) == (content, thinking)

    async def test_the_deadline_can_be_set(self, begin: Begin) -> None:
        """It is an option of a model, as its prices are."""
        assert begin(CHAT, first_content_seconds=5.0).backend.deadlines.content == 5.0


HUGE = 10**30
ABSURD: list[Any] = [
    -1, -1000, -(2**63), -HUGE, 2**31, 2**53, 2**63, 2**64, HUGE, 10**300,
    None, True, False, 1.5, -0.5, 1e300, float("nan"), float("inf"), -float("inf"),
    "", "12", "many", [], [5], {}, {"value": 5},
]  # fmt: skip


def usage_stream(peer: Peer, input: Any, output: Any) -> Answer:
    """Return an answer whose reported usage is `input` and `output`."""
    if peer == MESSAGES:
        ended = STOP | {"usage": {"input_tokens": input, "output_tokens": output}}
        return Answer(raw=stream(start({}), block(0, TEXT), delta(0, type="text_delta", text="hello"), ended, END))
    told = {"prompt_tokens": input, "completion_tokens": output, "input_tokens": input, "output_tokens": output}
    if peer == CHAT:
        return Answer(raw=stream(chunk({"content": "hello"}), chunk({}, "stop"), {"choices": [], "usage": told}))
    said = item({"type": "message", "content": [{"type": "output_text", "text": "hello"}]})
    ended = {"type": "response.completed", "response": {"status": "completed", "usage": told}}
    return Answer(raw=stream(said, ended))


@pytest.mark.parametrize("value", ABSURD, ids=lambda value: f"{value!r:.20}")
async def test_absurd_usage_neither_refunds_nor_exhausts_a_budget(
    server: ModelServer, talk: Talk, peer: Peer, value: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    """What is charged is within 0 and the window, is marked as an estimate, and is warned about once."""
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
    """A server that reports nothing uses tokens all the same."""
    server.script.append(Answer(raw=stream(chunk({"content": "hello"}), chunk({}, "stop"), b"data: [DONE]\n\n")))
    usage = (await begin(CHAT).ask()).usage
    assert usage.input_tokens > 10
    assert usage.output_tokens > 0
    assert not usage.cost_known


@pytest.mark.parametrize("cached", [-5, HUGE, "5", True, 1.5, [], {}])
async def test_absurd_counts_of_cached_tokens_are_within_the_request(
    server: ModelServer, begin: Begin, cached: Any
) -> None:
    """More tokens from the cache than were sent make no request cheaper than nothing."""
    told = {"prompt_tokens": 100, "completion_tokens": 5, "prompt_tokens_details": {"cached_tokens": cached}}
    server.script.append(Answer(raw=stream(chunk({"content": "x"}), chunk({}, "stop"), {"choices": [], "usage": told})))
    usage = (await begin(CHAT).ask()).usage
    assert usage.input_tokens + usage.cache_read_tokens == 100
    assert min(usage.input_tokens, usage.cache_read_tokens) >= 0
    assert not usage.cost_known


async def test_absurd_usage_of_a_failed_attempt_is_bounded(server: ModelServer, begin: Begin) -> None:
    """What an attempt that broke off reported is clamped as well."""
    broken = stream(start({"input_tokens": HUGE, "output_tokens": -HUGE}), block(0, TEXT))
    server.script += [Answer(raw=broken), say("well")]
    talk = begin(MESSAGES)
    talk.backend.most = BudgetAmounts(tokens=10_000_000.0)
    usage = (await talk.ask()).usage
    window = talk.backend.model.context
    assert 0 <= usage.input_tokens <= 2 * window
    assert 0 <= usage.output_tokens <= window


async def test_a_budget_survives_absurd_usage(server: ModelServer, tmp_path: Path) -> None:
    """What is spent of a budget only grows, by no more than a full window, and the agent goes on."""
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
    """Servers that speak OpenAI's API and refuse what their chat templates do not know."""

    @pytest.mark.parametrize("peer", [CHAT, RESPONSES, KIMI], ids=["chat", "responses", "kimi"])
    async def test_they_take_every_request(self, peer: Peer) -> None:
        """No field that only OpenAI knows is sent, and no system message after the first."""
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
    async def test_only_openai_gets_its_own_fields(self, begin: Begin, peer: Peer, url: str, own: bool) -> None:
        """Whether a server is OpenAI itself is told by its host."""
        talk = begin(peer, base_url=url)
        talk.backend.append_user((Text("hi"),))
        body = talk.backend._dialect.request(talk.backend._ask())
        assert {"store", "prompt_cache_key"} <= set(body) if own else not {"store", "prompt_cache_key"} & set(body)
