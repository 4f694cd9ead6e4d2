"""What comes over the wire becomes a response, by each API, with the real SDKs."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest
from msgspec.structs import replace

from orch_protocol.core.errors import BackendError, ConfigError
from orch_protocol.core.messages import Image, Message, Opaque, Text, Thinking, ToolResult, ToolUse, text_of, tool_uses
from wire.api_backends import CHAT, KIMI, MESSAGES, RESPONSES, Peer, Talk
from wire.model_server import Answer, ModelServer, call, say

Begin = Callable[..., Talk]
PARIS = {"call": "weather", "input": {"city": "Paris"}}
OSLO = {"call": "weather", "input": {"city": "Oslo"}}


async def test_text_is_streamed_and_returned(server: ModelServer, talk: Talk) -> None:
    """Text arrives piece by piece and as a whole, with why it ended."""
    server.script.append(say("Hello, wörld \N{GRINNING FACE}!"))
    turn = await talk.ask()
    assert turn.message == Message("assistant", (Text("Hello, wörld \N{GRINNING FACE}!"),))
    assert turn.stop_reason == "end_turn"
    assert len(talk.texts) > 1
    assert "".join(talk.texts) == text_of(turn.message)
    assert (server.refused, talk.retries) == ([], [])


async def test_parallel_calls_make_a_round_trip(server: ModelServer, talk: Talk) -> None:
    """Several calls of one response come in order; their results go back in the form that the API demands."""
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


async def test_a_stream_in_crumbs(server: ModelServer, talk: Talk) -> None:
    """Where the bytes of a stream are cut does not matter, not even within a character."""
    server.script.append(call(PARIS, text="Grüße aus 東京", crumbs=5))
    turn = await talk.ask()
    assert text_of(turn.message) == "Grüße aus 東京"
    assert tool_uses(turn.message)[0].input == {"city": "Paris"}


@pytest.mark.parametrize(
    ("stop", "expected"), [("max_tokens", "max_tokens"), ("refusal", "refusal"), ("end_turn", "end_turn")]
)
async def test_stop_reasons(server: ModelServer, talk: Talk, stop: str, expected: str) -> None:
    """Why a response ends has one name, whatever the provider calls it."""
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
async def test_stop_reasons_of_messages(server: ModelServer, begin: Begin, stop: str, expected: str) -> None:
    """A full window cuts off like a limit does, and a reason that nobody knows is no success."""
    server.script.append(say("so far", stop=stop))
    assert (await begin(MESSAGES).ask()).stop_reason == expected


@pytest.mark.parametrize("peer", [CHAT, RESPONSES], ids=["chat", "responses"])
async def test_refusal_is_text_and_stop_reason(server: ModelServer, begin: Begin, peer: Peer) -> None:
    """What a model says when it refuses is shown, and it counts as refusal."""
    server.script.append(Answer(blocks=({"refusal": "I will not."},)))
    talk = begin(peer)
    turn = await talk.ask()
    assert (text_of(turn.message), turn.stop_reason) == ("I will not.", "refusal")
    assert "".join(talk.texts) == "I will not."


async def test_usage_and_cost(server: ModelServer, talk: Talk) -> None:
    """Uncached, cached and written tokens are told apart, and priced by the model's own prices."""
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


async def test_cache_writes_are_counted(server: ModelServer, begin: Begin) -> None:
    """Tokens written to the cache are counted by themselves."""
    for peer in (MESSAGES, RESPONSES):
        server.script.append(say("ok", usage={"input": 10, "output": 1, "cache_write": 2000}))
        usage = (await begin(peer).ask()).usage
        assert (usage.input_tokens, usage.cache_write_tokens, usage.cost_known) == (10, 2000, True)


async def test_unknown_models_cost_is_a_floor(server: ModelServer, begin: Begin) -> None:
    """A model without a price costs at least what its provider's cheapest one does, and says so."""
    server.script.append(say("ok", usage={"input": 1000, "output": 100}))
    usage = (await begin(Peer("anthropic", "claude-tomorrow-7", "/v1/messages")).ask()).usage
    assert usage.cost_usd > 0
    assert not usage.cost_known


@pytest.mark.parametrize("raw", ['{"city": "Par', "[1]", '{"n": 1e999999}x', "null", ""])
async def test_arguments_that_are_no_object(server: ModelServer, talk: Talk, raw: str) -> None:
    """Arguments that are no JSON object are handed on as they came, for a refusal; nothing stands for no arguments."""
    server.script += [call({"call": "weather", "raw": raw}), say("ok")]
    turn = await talk.ask()
    assert tool_uses(turn.message)[0].input == ({} if raw in ("null", "") else {"invalid_json": raw})
    talk.answer(turn)
    await talk.turn()
    assert server.refused == []


async def test_lone_surrogates_do_not_break_anything(server: ModelServer, talk: Talk) -> None:
    """Half a character, in what is said and in what is answered, is replaced; two halves that came apart are joined."""
    server.script += [say("a\ud83d\ude00b\ud83d", stop="end_turn"), say("fine")]
    turn = await talk.ask("x\udc80y")
    assert text_of(turn.message) == "a\N{GRINNING FACE}b\N{REPLACEMENT CHARACTER}"
    for text in talk.texts:
        text.encode()
    await talk.ask("again")
    assert server.refused == []


@pytest.mark.usefixtures("as_openai")
async def test_nothing_is_stored_or_tuned(server: ModelServer, talk: Talk, peer: Peer) -> None:
    """No request asks to be stored or sets a temperature, each is streamed, and it goes where the API is."""
    await talk.ask()
    body = server.requests[0].body
    assert server.requests[0].path == peer.path
    assert body["stream"] is True
    assert {"temperature", "top_p", "top_k"} & set(body) == set()
    assert body.get("store", False) is False
    assert ("store" in body) == (peer.provider == "openai")


async def test_the_key_goes_along_and_nowhere_else(server: ModelServer, talk: Talk, peer: Peer) -> None:
    """The key is in the request's header, and in no body."""
    await talk.ask()
    request = server.requests[0]
    key = {"anthropic": "k1", "openai": "k2"}[peer.provider]
    assert request.headers["authorization"] == f"Bearer {key}"
    assert key.encode() not in request.raw


async def test_environment_is_not_asked(server: ModelServer, talk: Talk, monkeypatch: pytest.MonkeyPatch) -> None:
    """Addresses, keys and headers in the environment of the process do not count: the root has decided."""
    for vendor in ("ANTHROPIC", "OPENAI"):
        monkeypatch.setenv(f"{vendor}_BASE_URL", "http://127.0.0.1:9")
        monkeypatch.setenv(f"{vendor}_API_KEY", "wrong")
        monkeypatch.setenv(f"{vendor}_CUSTOM_HEADERS", "X-Gate: for another")
    await talk.ask()
    assert ["x-gate" in request.headers for request in server.requests] == [False]


async def test_headers_from_the_callers_variable(server: ModelServer) -> None:
    """Headers that the user set for a provider go along."""
    talk = MESSAGES.talk(server)
    keys = {"ANTHROPIC_API_KEY": "k", "ANTHROPIC_CUSTOM_HEADERS": "X-Team: blue\nanthropic-version: 2023-06-01"}
    backend = type(talk.backend)(MESSAGES.spec(server), keys, talk.backend._dialect)
    backend.append_user((Text("hi"),))
    await backend.assistant_turn()
    await backend.close()
    headers = server.requests[0].headers
    assert (headers["x-team"], headers["anthropic-version"]) == ("blue", "2023-06-01")


@pytest.mark.parametrize("value", ["caf\xe9", "a\nb", "\x7f", "\udcff"])
async def test_a_header_or_key_that_cannot_be_sent_is_named_at_once(server: ModelServer, value: str) -> None:
    """Without its value, which may be a secret; nobody is asked six times, nor blamed for the answer."""
    talk = MESSAGES.talk(server)
    spec = MESSAGES.spec(server)
    spec = replace(spec, options=spec.options | {"headers": {"X-Team": "{ACME_TEAM}"}})
    with pytest.raises(ConfigError, match=r"cannot send the header 'X-Team' of anthropic:[^ ]*: the value") as told:
        type(talk.backend)(spec, {"ANTHROPIC_API_KEY": "k", "ACME_TEAM": value}, talk.backend._dialect)
    assert value not in str(told.value)
    with pytest.raises(ConfigError, match=r"cannot send the key of anthropic:[^ ]*: the value"):
        type(talk.backend)(spec, {"ANTHROPIC_API_KEY": f"k{value}"}, talk.backend._dialect)


async def test_headers_of_a_provider_that_is_data(server: ModelServer, begin: Begin) -> None:
    """A provider may want its key in another header."""
    await begin(MESSAGES, headers={"X-Api-Key": "{key}"}).ask()
    assert server.requests[0].headers["x-api-key"] == "k1"


async def test_body_of_a_model_that_is_data(server: ModelServer, begin: Begin) -> None:
    """What the data says belongs into every request is in it."""
    await begin(MESSAGES, body={"thinking": {"type": "adaptive"}}).ask()
    assert server.requests[0].body["thinking"] == {"type": "adaptive"}


async def test_one_connection_serves_all_steps(server: ModelServer, talk: Talk) -> None:
    """The steps of a conversation share a connection."""
    for _ in range(3):
        await talk.ask()
    assert server.connections == 1


async def test_close_gives_connections_up_for_good(server: ModelServer, talk: Talk) -> None:
    """After close the next request opens a new connection."""
    await talk.ask()
    await talk.backend.close()
    await talk.ask()
    assert server.connections == 2


async def test_nothing_to_answer(begin: Begin) -> None:
    """An empty conversation is an error of ours, not of the provider."""
    with pytest.raises(BackendError, match="conversation is empty"):
        await begin(MESSAGES).backend.assistant_turn()


class TestThinking:
    """Reasoning goes back as it came, to where it came from."""

    async def test_thinking_returns_byte_for_byte(self, server: ModelServer, begin: Begin) -> None:
        """Thinking with its signature, redacted thinking and unknown blocks are the same when they return."""
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

    async def test_altered_thinking_is_refused(self, server: ModelServer, begin: Begin) -> None:
        """The server of these tests does notice when thinking was touched."""
        server.script.append(Answer(blocks=({"thinking": "Hm"}, {"text": "T"})))
        talk = begin(MESSAGES)
        turn = await talk.ask()
        thinking = turn.message.content[0]
        assert isinstance(thinking, Thinking)
        altered = Thinking("Hmm", thinking.signature, thinking.provider)
        talk.backend.load([*talk.messages()[:-1], Message("assistant", (altered, Text("T")))])
        with pytest.raises(BackendError, match="Invalid `signature`"):
            await talk.ask()

    async def test_encrypted_reasoning_returns(self, server: ModelServer, begin: Begin) -> None:
        """Reasoning items come encrypted and return whole, each before what it led to; so does a message's phase."""
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

    async def test_reasoning_that_led_nowhere_is_left_out(self, server: ModelServer, begin: Begin) -> None:
        """Of a response that was cut off while reasoning, nothing returns."""
        server.script += [Answer(blocks=({"thinking": "Hm"},), stop="max_tokens"), say("ok")]
        talk = begin(RESPONSES)
        assert (await talk.ask()).stop_reason == "max_tokens"
        await talk.ask("go on")
        assert server.refused == []

    async def test_plain_reasoning_returns_with_its_call(self, server: ModelServer, begin: Begin) -> None:
        """Where reasoning is plain text in a field of its own, it returns in that field."""
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
    async def test_a_conversation_moves_to_another_provider(
        self, server: ModelServer, begin: Begin, origin: Peer, to: Peer
    ) -> None:
        """What one provider began another one can go on with: no reasoning of the other's, ids that fit."""
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
    """What a request holds."""

    async def test_cache_markers(self, server: ModelServer, begin: Begin) -> None:
        """The stable prefix is marked, the end of the conversation, and where the request before it ended."""
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

    async def test_the_prefix_stays_the_same(self, server: ModelServer, talk: Talk, peer: Peer) -> None:
        """Each request begins with the one before it, byte for byte but for the markers, so that it is cached."""
        server.script += [call(PARIS, OSLO, text="Hm"), say("wet")]
        talk.answer(await talk.ask())
        await talk.turn()
        await talk.ask("bye")
        before, after = (_unmarked(server.requests[place].body, peer) for place in (1, 2))
        assert after[: len(before)] == before

    async def test_without_system_text_the_tools_are_marked(self, server: ModelServer, begin: Begin) -> None:
        """Tools alone are a prefix too."""
        talk = begin(MESSAGES)
        talk.backend.append_system("", talk.backend.tools)
        await talk.ask()
        body = server.requests[0].body
        assert "system" not in body
        assert "cache_control" in body["tools"][-1]

    @pytest.mark.usefixtures("as_openai")
    async def test_siblings_share_a_cache_key(self, server: ModelServer, begin: Begin) -> None:
        """Agents with the same system text and tools ask for the same cache."""
        await begin(RESPONSES).ask("one")
        await begin(RESPONSES).ask("two")
        other = begin(RESPONSES)
        other.backend.append_system("You are verbose.", ())
        await other.ask("three")
        keys = [request.body["prompt_cache_key"] for request in server.requests]
        assert keys[0] == keys[1] != keys[2]

    async def test_images(self, server: ModelServer, talk: Talk) -> None:
        """Images go along, a user's and those in results."""
        picture = Image("image/png", "aGk=")
        server.script += [call(PARIS), say("nice")]
        talk.backend.append_user((Text("look"), picture))
        turn = await talk.turn()
        talk.backend.append_tool_result([ToolResult(tool_uses(turn.message)[0].id, (Text("seen"), picture))])
        await talk.turn()
        assert server.refused == []
        assert server.requests[1].raw.count(b"aGk=") == 2

    async def test_models_without_eyes(self, server: ModelServer, begin: Begin) -> None:
        """A model that takes no images gets a note in their place."""
        talk = begin(Peer("moonshot", "moonshot-v1-8k", "/v1/chat/completions", "/v1"))
        talk.backend.append_user((Image("image/png", "aGk="),))
        await talk.turn()
        assert b"aGk=" not in server.requests[0].raw
        assert b"takes none" in server.requests[0].raw

    async def test_errors_of_tools_are_marked_as_such(self, server: ModelServer, talk: Talk, peer: Peer) -> None:
        """The model learns that a call failed."""
        server.script += [call(PARIS), say("oh")]
        turn = await talk.ask()
        talk.backend.append_tool_result([ToolResult(tool_uses(turn.message)[0].id, (Text("no such city"),), True)])
        await talk.turn()
        raw = server.requests[1].raw
        assert (b'"is_error":true' if peer == MESSAGES else b"Error: no such city") in raw

    async def test_system_messages(self, server: ModelServer, talk: Talk) -> None:
        """A system message in the middle of a conversation is taken, also between a call and its result."""
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

    async def test_most_tokens(self, server: ModelServer, begin: Begin) -> None:
        """The limit on output goes under the name that the API has for it, and never beyond the model's own."""
        for peer in (MESSAGES, RESPONSES, CHAT, KIMI):
            await begin(peer).ask()
        bodies = [request.body for request in server.requests]
        assert bodies[0]["max_tokens"] == 64_000
        assert bodies[1]["max_output_tokens"] == 64_000
        assert bodies[2]["max_completion_tokens"] == 16_384
        assert bodies[3]["max_tokens"] == 64_000

    async def test_a_local_model_needs_no_key(self, server: ModelServer, begin: Begin) -> None:
        """A provider without keys is asked without one, and without a limit that nobody knows."""
        talk = begin(Peer("ollama", "qwen3", "/v1/chat/completions", "/v1"))
        server.script.append(say("hi", usage={"input": 5, "output": 5}))
        usage = (await talk.ask()).usage
        assert (usage.cost_usd, usage.cost_known) == (0.0, True)
        assert "max_tokens" not in server.requests[0].body


async def test_calls_that_all_are_number_zero(
    server: ModelServer, begin: Begin, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Servers that give every parallel call the index 0 are understood by the ids."""
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


async def test_many_at_once(server: ModelServer, peer: Peer, begin: Begin) -> None:
    """Conversations do not get into each other's way."""
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
