"""Streams become responses, and conversations become requests, with each API and the real SDKs."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest
from msgspec.structs import replace

from orch_protocol.core.errors import BackendError, ConfigError
from orch_protocol.core.messages import (
    Image,
    Message,
    Opaque,
    Text,
    Thinking,
    ToolResult,
    ToolUse,
    text_of,
    tool_uses,
    user,
)
from orch_worker.backends.models import load
from orch_worker.backends.prices import cost
from pictures import png
from wire.api_backends import CHAT, KIMI, MESSAGES, RESPONSES, Peer, Talk
from wire.model_server import Answer, ModelServer, call, say

Begin = Callable[..., Talk]
PARIS = {"call": "weather", "input": {"city": "Paris"}}
OSLO = {"call": "weather", "input": {"city": "Oslo"}}


async def test_text_is_streamed_and_returned(server: ModelServer, talk: Talk) -> None:
    """The streamed text is the text of the message, which has a stop reason."""
    server.script.append(say("Hello, wörld \N{GRINNING FACE}!"))
    turn = await talk.ask()
    assert turn.message == Message("assistant", (Text("Hello, wörld \N{GRINNING FACE}!"),))
    assert turn.stop_reason == "end_turn"
    assert "".join(talk.texts) == text_of(turn.message)
    assert (server.refused, talk.retries) == ([], [])


async def test_first_text_is_passed_on_before_the_rest_arrives(server: ModelServer, talk: Talk, peer: Peer) -> None:
    """The server sends the rest only after the first text was passed on."""
    shown = asyncio.Event()

    class Texts(list[str]):
        def append(self, text: str) -> None:
            super().append(text)
            shown.set()

    talk.texts = Texts()
    server.script.append(say("Hello, wörld \N{GRINNING FACE}!", pause=(2 if peer == CHAT else 4, shown)))
    turn = await talk.ask()
    assert len(talk.texts) > 1
    assert "".join(talk.texts) == text_of(turn.message)


async def test_parallel_calls_make_a_round_trip(server: ModelServer, talk: Talk) -> None:
    """Parallel calls of one response arrive in order, and the server accepts their results."""
    server.script += [call(PARIS, OSLO, text="Let me look."), say("Both are wet.")]
    turn = await talk.ask("weather?")
    assert turn.stop_reason == "tool_use"
    assert [(use.name, use.input) for use in tool_uses(turn.message)] == [
        ("weather", {"city": "Paris"}),
        ("weather", {"city": "Oslo"}),
    ]
    talk.answer(turn)
    assert text_of((await talk.turn()).message) == "Both are wet."
    assert server.refused == []


async def test_stream_can_be_cut_at_any_byte(server: ModelServer, talk: Talk) -> None:
    """A stream is read correctly if it arrives in pieces of five bytes, even if a piece ends within a character."""
    server.script.append(call(PARIS, text="Grüße aus 東京", crumbs=5))
    turn = await talk.ask()
    assert text_of(turn.message) == "Grüße aus 東京"
    assert tool_uses(turn.message)[0].input == {"city": "Paris"}


@pytest.mark.parametrize(
    ("stop", "expected"), [("max_tokens", "max_tokens"), ("refusal", "refusal"), ("end_turn", "end_turn")]
)
async def test_stop_reasons_are_normalized(server: ModelServer, talk: Talk, stop: str, expected: str) -> None:
    """The different stop reasons of the APIs become the same names."""
    server.script.append(say("so far", stop=stop))
    assert (await talk.ask()).stop_reason == expected


@pytest.mark.parametrize(
    ("stop", "expected"),
    [
        ("model_context_window_exceeded", "max_tokens"),
        ("stop_sequence", "stop_sequence"),
        ("never_heard_of", "error"),
    ],
)
async def test_full_window_and_unknown_stop_reasons_are_no_success(
    server: ModelServer, begin: Begin, stop: str, expected: str
) -> None:
    """A full context window is `max_tokens`, and an unknown stop reason is `error`."""
    server.script.append(say("so far", stop=stop))
    assert (await begin(MESSAGES).ask()).stop_reason == expected


@pytest.mark.parametrize("peer", [CHAT, RESPONSES], ids=["chat", "responses"])
async def test_refusal_is_returned_with_its_stop_reason(server: ModelServer, begin: Begin, peer: Peer) -> None:
    """The text of a refusal is streamed and returned, with the stop reason `refusal`."""
    server.script.append(Answer(blocks=({"refusal": "I will not."},)))
    talk = begin(peer)
    turn = await talk.ask()
    assert (text_of(turn.message), turn.stop_reason) == ("I will not.", "refusal")
    assert "".join(talk.texts) == "I will not."


async def test_usage_and_cost(server: ModelServer, talk: Talk) -> None:
    """Input tokens and cached tokens are counted separately, and the prices of the model determine the cost."""
    server.script.append(say("ok", usage={"input": 1000, "output": 100, "cache_read": 4000, "cache_write": 0}))
    usage = (await talk.ask()).usage
    assert (usage.input_tokens, usage.output_tokens, usage.cache_read_tokens) == (1000, 100, 4000)
    price = talk.backend.model.prices[0]
    assert price.input is not None
    assert price.output is not None
    assert price.cache_read is not None
    expected = (1000 * price.input + 100 * price.output + 4000 * price.cache_read) / 1e6
    assert usage.cost_usd == pytest.approx(expected)
    assert usage.cost_known


async def test_cache_writes_are_counted_separately(server: ModelServer, begin: Begin) -> None:
    """Tokens that are written to the cache do not count as input tokens."""
    for peer in (MESSAGES, RESPONSES):
        server.script.append(say("ok", usage={"input": 10, "output": 1, "cache_write": 2000}))
        usage = (await begin(peer).ask()).usage
        assert (usage.input_tokens, usage.cache_write_tokens, usage.cost_known) == (10, 2000, True)


async def test_unknown_models_cost_is_a_lower_bound(server: ModelServer, begin: Begin) -> None:
    """No model of the provider costs less than the stated cost, which is marked as not known."""
    server.script.append(say("ok", usage={"input": 1000, "output": 100}))
    usage = (await begin(Peer("anthropic", "claude-tomorrow-7", "/v1/messages")).ask()).usage
    catalog = load()
    listed = [catalog.look_up("anthropic", name) for name in catalog.models["anthropic"]]
    assert 0 < usage.cost_usd <= min(cost(model, usage).cost_usd for model in listed if model.prices)
    assert not usage.cost_known


@pytest.mark.parametrize("raw", ['{"city": "Par', "[1]", '{"n": 1e999999}x', "null", ""])
async def test_non_object_arguments_are_passed_on_for_refusal(server: ModelServer, talk: Talk, raw: str) -> None:
    """Arguments that are not a JSON object become the argument `invalid_json`. Missing arguments become an empty
    object.
    """
    server.script += [call({"call": "weather", "raw": raw}), say("ok")]
    turn = await talk.ask()
    assert tool_uses(turn.message)[0].input == ({} if raw in ("null", "") else {"invalid_json": raw})
    talk.answer(turn)
    await talk.turn()
    assert server.refused == []


async def test_lone_surrogates_are_replaced_and_pairs_joined(server: ModelServer, talk: Talk) -> None:
    """Surrogates in prompts and responses become text that can be encoded."""
    server.script += [say("a\ud83d\ude00b\ud83d", stop="end_turn"), say("fine")]
    turn = await talk.ask("x\udc80y")
    assert text_of(turn.message) == "a\N{GRINNING FACE}b\N{REPLACEMENT CHARACTER}"
    for text in talk.texts:
        text.encode()
    await talk.ask("again")
    assert server.refused == []


@pytest.mark.usefixtures("as_openai")
async def test_requests_are_streamed_without_storage_or_temperature(
    server: ModelServer, talk: Talk, peer: Peer
) -> None:
    """A request is streamed, is sent to the path of its API, and does not ask for storage or a temperature."""
    await talk.ask()
    body = server.requests[0].body
    assert server.requests[0].path == peer.path
    assert body["stream"] is True
    assert {"temperature", "top_p", "top_k"} & set(body) == set()
    assert body.get("store", False) is False
    assert ("store" in body) == (peer.provider == "openai")


async def test_key_is_sent_in_the_header_only(server: ModelServer, talk: Talk, peer: Peer) -> None:
    """The authorization header contains the key, and the body does not."""
    await talk.ask()
    request = server.requests[0]
    key = {"anthropic": "k1", "openai": "k2"}[peer.provider]
    assert request.headers["authorization"] == f"Bearer {key}"
    assert key.encode() not in request.raw


async def test_environment_variables_of_the_worker_are_ignored(
    server: ModelServer, talk: Talk, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Addresses, keys and headers in the environment of the worker do not change requests."""
    for vendor in ("ANTHROPIC", "OPENAI"):
        monkeypatch.setenv(f"{vendor}_BASE_URL", "http://127.0.0.1:9")
        monkeypatch.setenv(f"{vendor}_API_KEY", "wrong")
        monkeypatch.setenv(f"{vendor}_CUSTOM_HEADERS", "X-Gate: for another")
    await talk.ask()
    assert ["x-gate" in request.headers for request in server.requests] == [False]


async def test_headers_from_the_callers_variable(server: ModelServer) -> None:
    """Headers that the user set in the variable of the provider are sent."""
    talk = MESSAGES.talk(server)
    keys = {"ANTHROPIC_API_KEY": "k", "ANTHROPIC_CUSTOM_HEADERS": "X-Team: blue\nanthropic-version: 2023-06-01"}
    backend = type(talk.backend)(MESSAGES.spec(server), keys, talk.backend._format, talk.backend._new_client)
    backend.append_user((Text("hi"),))
    await backend.assistant_turn()
    await backend.close()
    headers = server.requests[0].headers
    assert (headers["x-team"], headers["anthropic-version"]) == ("blue", "2023-06-01")


@pytest.mark.parametrize("value", ["caf\xe9", "a\nb", "\x7f", "\udcff"])
async def test_unsendable_header_or_key_is_an_immediate_error(server: ModelServer, value: str) -> None:
    """A header or key with characters that cannot be sent is an error before any request.

    The error does not contain the value.
    """
    talk = MESSAGES.talk(server)
    spec = MESSAGES.spec(server)
    spec = replace(spec, options=spec.options | {"headers": {"X-Team": "{ACME_TEAM}"}})
    with pytest.raises(ConfigError, match=r"cannot send the header 'X-Team' of anthropic:[^ ]*: the value") as caught:
        type(talk.backend)(
            spec, {"ANTHROPIC_API_KEY": "k", "ACME_TEAM": value}, talk.backend._format, talk.backend._new_client
        )
    assert value not in str(caught.value)
    with pytest.raises(ConfigError, match=r"cannot send the key of anthropic:[^ ]*: the value"):
        type(talk.backend)(spec, {"ANTHROPIC_API_KEY": f"k{value}"}, talk.backend._format, talk.backend._new_client)


async def test_provider_can_configure_its_key_header(server: ModelServer, begin: Begin) -> None:
    """The key is sent in the header that is configured for the provider."""
    await begin(MESSAGES, headers={"X-Api-Key": "{key}"}).ask()
    assert server.requests[0].headers["x-api-key"] == "k1"


async def test_model_can_configure_body_fields(server: ModelServer, begin: Begin) -> None:
    """The body fields that are configured for a model are part of each request."""
    await begin(MESSAGES, body={"thinking": {"type": "adaptive"}}).ask()
    assert server.requests[0].body["thinking"] == {"type": "adaptive"}


async def test_one_connection_serves_all_steps(server: ModelServer, talk: Talk) -> None:
    """Three requests of one conversation use the same connection."""
    for _ in range(3):
        await talk.ask()
    assert server.connections == 1


async def test_close_ends_the_connection(server: ModelServer, talk: Talk) -> None:
    """A request after `close` opens a new connection."""
    await talk.ask()
    await talk.backend.close()
    await talk.ask()
    assert server.connections == 2


async def test_empty_conversation_is_refused_before_sending(begin: Begin) -> None:
    """A request for an empty conversation is an error of orch, not of the provider."""
    with pytest.raises(BackendError, match="conversation is empty"):
        await begin(MESSAGES).backend.assistant_turn()


class TestThinking:
    """Reasoning is sent back unchanged, and only to the provider that created it."""

    async def test_thinking_returns_byte_for_byte(self, server: ModelServer, begin: Begin) -> None:
        """Thinking with its signature, redacted thinking and unknown blocks are unchanged in the next request."""
        blocks = ({"thinking": "Hm, 東京?"}, {"redacted": "x"}, {"other": {"a": [1, None]}}, {"text": "T"}, PARIS)
        server.script += [Answer(blocks=blocks), say("wet")]
        talk = begin(MESSAGES)
        turn = await talk.ask()
        assert isinstance(turn.message.content[0], Thinking)
        assert [type(block) for block in turn.message.content[1:3]] == [Opaque, Opaque]
        talk.answer(turn)
        await talk.turn()
        assert server.refused == []
        sent = server.requests[1].body["messages"][1]["content"]
        assert [block["type"] for block in sent[:3]] == ["thinking", "redacted_thinking", "server_thing"]

    async def test_altered_thinking_is_refused_by_the_test_server(self, server: ModelServer, begin: Begin) -> None:
        """The test server refuses thinking whose text does not match its signature. The request is repeated."""
        server.script.append(Answer(blocks=({"thinking": "Hm"}, {"text": "T"})))
        talk = begin(MESSAGES)
        turn = await talk.ask()
        thinking = turn.message.content[0]
        assert isinstance(thinking, Thinking)
        altered = Thinking("Hmm", thinking.signature, thinking.provider)
        talk.backend.load([*talk.messages()[:-1], Message("assistant", (altered, Text("T")))])
        await talk.ask()
        assert ["Invalid `signature`" in refused for refused in server.refused] == [True]

    async def test_encrypted_reasoning_returns(self, server: ModelServer, begin: Begin) -> None:
        """Encrypted reasoning is sent back before the message or the calls that followed it.

        A message is sent back with its phase.
        """
        blocks = ({"thinking": "Hm"}, {"text": "Looking.", "phase": "commentary"}, {"thinking": "So"}, PARIS, OSLO)
        server.script += [Answer(blocks=blocks), say("wet")]
        talk = begin(RESPONSES)
        turn = await talk.ask()
        talk.answer(turn)
        await talk.turn()
        assert server.refused == []
        kinds = [item["type"] for item in server.requests[1].body["input"]]
        assert kinds[:3] == ["message", "reasoning", "message"]
        assert kinds[3:] == ["reasoning", "function_call", "function_call", *2 * ["function_call_output"]]
        assert server.requests[1].body["input"][1]["encrypted_content"]

    async def test_unfinished_reasoning_is_left_out(self, server: ModelServer, begin: Begin) -> None:
        """If a response was cut off during reasoning, the next request does not contain its reasoning."""
        server.script += [Answer(blocks=({"thinking": "Hm"},), stop="max_tokens"), say("ok")]
        talk = begin(RESPONSES)
        assert (await talk.ask()).stop_reason == "max_tokens"
        await talk.ask("go on")
        assert server.refused == []

    async def test_plain_reasoning_returns_with_its_call(self, server: ModelServer, begin: Begin) -> None:
        """Reasoning that arrives as text in a separate field is sent back in the same field."""
        server.script += [call(PARIS, thinking="Hm, Paris."), say("wet")]
        talk = begin(KIMI)
        turn = await talk.ask()
        assert turn.message.content[0] == Thinking("Hm, Paris.", None, "moonshot")
        talk.answer(turn)
        await talk.turn()
        assert server.refused == []
        assert server.requests[1].body["messages"][2]["reasoning_content"] == "Hm, Paris."

    @pytest.mark.parametrize("to", [MESSAGES, CHAT, RESPONSES, KIMI], ids=["messages", "chat", "responses", "kimi"])
    @pytest.mark.parametrize("origin", [MESSAGES, CHAT, RESPONSES, KIMI], ids=["messages", "chat", "responses", "kimi"])
    async def test_conversation_moves_to_another_provider(
        self, server: ModelServer, begin: Begin, origin: Peer, to: Peer
    ) -> None:
        """The other provider gets call ids that are valid for it, and no reasoning of the first provider."""
        ids = {"id": "functions.weather:0"} if origin == KIMI else {"id": "toolu_" + "x" * 50}
        server.script += [call(PARIS | ids, OSLO, thinking="" if origin == CHAT else "Hm")]
        first = begin(origin)
        turn = await first.ask()
        first.answer(turn)
        server.issued = {} if to.provider != origin.provider else server.issued
        second = begin(to)
        second.backend.load(first.messages())
        if origin == RESPONSES:
            assert any(isinstance(block, Opaque) for block in turn.message.content)
        await second.turn()
        assert server.refused == []


class TestRequests:
    """The content of requests."""

    async def test_cache_markers(self, server: ModelServer, begin: Begin) -> None:
        """Cache markers are on the stable prefix, at the end of the conversation and at the end of the previous
        request.
        """
        server.script += [call(PARIS), say("wet"), say("bye")]
        talk = begin(MESSAGES)
        talk.answer(await talk.ask())
        await talk.turn()
        body = server.requests[1].body
        assert body["system"] == [{"type": "text", "text": "You are terse.", "cache_control": {"type": "ephemeral"}}]
        marked = [
            (place, block["type"])
            for place, message in enumerate(body["messages"])
            for block in message["content"]
            if "cache_control" in block
        ]
        assert marked == [(0, "text"), (2, "tool_result")]

    async def test_each_request_extends_the_previous_one(self, server: ModelServer, talk: Talk, peer: Peer) -> None:
        """Without cache markers, the next request begins with the whole previous request, byte by byte."""
        server.script += [call(PARIS, OSLO, text="Hm"), say("wet")]
        talk.answer(await talk.ask())
        await talk.turn()
        await talk.ask("bye")
        before, after = (_unmarked(server.requests[place].body, peer) for place in (1, 2))
        assert after[: len(before)] == before

    async def test_without_system_text_the_tools_are_marked(self, server: ModelServer, begin: Begin) -> None:
        """If there is no system text, the last tool has a cache marker."""
        talk = begin(MESSAGES)
        talk.backend.append_system("", talk.backend.tools)
        await talk.ask()
        body = server.requests[0].body
        assert "system" not in body
        assert "cache_control" in body["tools"][-1]

    @pytest.mark.usefixtures("as_openai")
    async def test_siblings_share_a_cache_key(self, server: ModelServer, begin: Begin) -> None:
        """Agents with the same system text and tools have the same cache key. Other agents have another key."""
        await begin(RESPONSES).ask("one")
        await begin(RESPONSES).ask("two")
        other = begin(RESPONSES)
        other.backend.append_system("You are verbose.", ())
        await other.ask("three")
        keys = [request.body["prompt_cache_key"] for request in server.requests]
        assert keys[0] == keys[1] != keys[2]

    async def test_images_of_prompts_and_results_are_sent(self, server: ModelServer, talk: Talk, peer: Peer) -> None:
        """Images are sent in the form of each API.

        With Chat Completions, a tool message contains only text, so a user message with the image follows.
        """
        picture = Image.from_bytes(png(2, 1), "dot.png")
        server.script += [call(PARIS), say("nice")]
        talk.backend.append_user(user(["look", picture]).content)
        turn = await talk.turn()
        talk.backend.append_tool_result([ToolResult(tool_uses(turn.message)[0].id, (Text("seen"), picture))])
        await talk.turn()
        assert server.refused == []
        body, url = server.requests[1].body, f"data:image/png;base64,{picture.data}"
        if peer.path == MESSAGES.path:
            source = {"type": "base64", "media_type": "image/png", "data": picture.data}
            image, text = {"type": "image", "source": source}, {"type": "text", "text": "look"}
            assert _unmarked(body, peer)[-3]["content"] == [text, image]
            assert body["messages"][-1]["content"][0]["content"] == [{"type": "text", "text": "seen"}, image]
        elif peer.path == RESPONSES.path:
            image = {"type": "input_image", "image_url": url, "detail": "auto"}
            assert body["input"][0]["content"] == [{"type": "input_text", "text": "look"}, image]
            assert body["input"][-1]["output"] == [{"type": "input_text", "text": "seen"}, image]
        else:
            image = {"type": "image_url", "image_url": {"url": url}}
            assert body["messages"][1]["content"] == [{"type": "text", "text": "look"}, image]
            assert body["messages"][-2]["content"] == "seen\n\n[image: dot.png, 2x1]"
            assert body["messages"][-1]["content"] == [{"type": "text", "text": "[image: dot.png, 2x1]"}, image]

    @pytest.mark.parametrize("to", [CHAT, RESPONSES], ids=["chat", "responses"])
    async def test_linked_images_and_files_are_sent_to_openai(
        self, server: ModelServer, begin: Begin, to: Peer
    ) -> None:
        """A part in the format of one of OpenAI's APIs is converted for the other API. A text replaces other parts."""
        url = "https://example.org/a.png"
        chat = [
            {"type": "image_url", "image_url": {"url": url, "detail": "low"}},
            {"type": "file", "file": {"file_id": "f1"}},
        ]
        responses = [
            {"type": "input_image", "image_url": url, "detail": "low"},
            {"type": "input_file", "file_id": "f1"},
        ]
        only_chat = [{"type": "input_audio", "input_audio": {"data": "", "format": "wav"}}]
        only_responses = [{"type": "input_image", "file_id": "f2"}, {"type": "input_file", "file_url": url}]
        talk = begin(to)
        parts = chat + responses + (only_responses if to == CHAT else only_chat)
        talk.backend.append_user(tuple(Opaque("openai", part) for part in parts))
        await talk.turn()
        assert server.refused == []
        end = "; not shown: this model does not accept this content]"
        if to == CHAT:
            texts = [f"[input_image: f2{end}", f"[input_file: {url}{end}"]
            content = [*chat * 2, *({"type": "text", "text": text} for text in texts)]
            assert server.requests[0].body["messages"][1]["content"] == content
        else:
            content = [*responses * 2, {"type": "input_text", "text": f"[input_audio{end}"}]
            assert server.requests[0].body["input"][0]["content"] == content

    async def test_models_without_vision_get_a_note_for_images(self, server: ModelServer, begin: Begin) -> None:
        """A model that does not accept images gets a note in place of the image."""
        talk = begin(Peer("moonshot", "moonshot-v1-8k", "/v1/chat/completions", "/v1"))
        talk.backend.append_user((Image("image/png", "aGk="),))
        await talk.turn()
        assert b"aGk=" not in server.requests[0].raw
        assert b"[image: image/png; not shown: this model does not accept images]" in server.requests[0].raw

    async def test_tool_errors_are_marked(self, server: ModelServer, talk: Talk, peer: Peer) -> None:
        """The result of a failed call is sent with a field or a prefix that marks it as an error."""
        server.script += [call(PARIS), say("oh")]
        turn = await talk.ask()
        talk.backend.append_tool_result([ToolResult(tool_uses(turn.message)[0].id, (Text("no such city"),), True)])
        await talk.turn()
        raw = server.requests[1].raw
        assert (b'"is_error":true' if peer == MESSAGES else b"Error: no such city") in raw

    async def test_system_messages(self, server: ModelServer, talk: Talk) -> None:
        """The server accepts system messages within a conversation, even between a call and its result."""
        server.script += [call(PARIS), say("ok")]
        talk.backend.load([Message("system", (Text("Be kind."),))])
        turn = await talk.ask()
        talk.backend.load([*talk.messages(), Message("system", (Text("Be quick."),))])
        talk.answer(turn)
        await talk.turn()
        assert server.refused == []
        raw = server.requests[1].raw
        assert b"Be kind." in raw
        assert b"Be quick." in raw

    async def test_output_limit_uses_the_apis_field(self, server: ModelServer, begin: Begin) -> None:
        """Each API has its own field for the output limit, and the limit is the limit of the model."""
        for peer in (MESSAGES, RESPONSES, CHAT, KIMI):
            await begin(peer).ask()
        bodies = [request.body for request in server.requests]
        assert bodies[0]["max_tokens"] == 64_000
        assert bodies[1]["max_output_tokens"] == 64_000
        assert bodies[2]["max_completion_tokens"] == 16_384
        assert bodies[3]["max_tokens"] == 64_000

    async def test_local_model_needs_neither_key_nor_limit(self, server: ModelServer, begin: Begin) -> None:
        """A local model costs nothing, and an unknown output limit is not sent."""
        talk = begin(Peer("ollama", "qwen3", "/v1/chat/completions", "/v1"))
        server.script.append(say("hi", usage={"input": 5, "output": 5}))
        usage = (await talk.ask()).usage
        assert (usage.cost_usd, usage.cost_known) == (0.0, True)
        assert "max_tokens" not in server.requests[0].body


async def test_parallel_calls_with_index_zero_are_told_apart_by_id(
    server: ModelServer, begin: Begin, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If a server gives the index 0 to every parallel call, the ids distinguish the calls."""
    from wire import chat_rules

    def zero(data: Any, event: str | None = None) -> bytes:
        for choice in data.get("choices", ()) if isinstance(data, dict) else ():
            for piece in choice["delta"].get("tool_calls", ()):
                piece["index"] = 0
        return sse(data, event)

    sse = chat_rules.sse
    monkeypatch.setattr(chat_rules, "sse", zero)
    one, other = ({"call": "weather", "raw": "", "id": id} for id in ("a", "b"))
    server.script.append(call(one, other))
    turn = await begin(CHAT).ask()
    assert turn.message.content == (ToolUse("a", "weather", {}), ToolUse("b", "weather", {}))


async def test_concurrent_conversations_are_independent(server: ModelServer, peer: Peer, begin: Begin) -> None:
    """Twelve conversations at the same time each get their own answer."""
    server.otherwise = lambda request: say(request.raw.decode().split("number ")[-1].split(".")[0])
    talks = [begin(peer) for _ in range(12)]
    turns = await asyncio.gather(*(talk.ask(f"I am number {n}.") for n, talk in enumerate(talks)))
    assert [text_of(turn.message) for turn in turns] == [str(n) for n in range(12)]


def _unmarked(body: dict[str, Any], peer: Peer) -> list[Any]:
    messages = body["input" if peer == RESPONSES else "messages"]
    for message in messages:
        for block in message["content"] if isinstance(message.get("content"), list) else ():
            block.pop("cache_control", None)
    return [{name: value for name, value in body.items() if name not in ("messages", "input", "system")}, *messages]
