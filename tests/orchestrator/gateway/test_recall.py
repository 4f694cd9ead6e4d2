"""Calls of recall tools: the gateway answers them, and the client sees neither the calls nor their results."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from orchestrator.gateway.gateway_world import (
    RECALLS,
    ChatClient,
    Client,
    MessagesClient,
    ResponsesClient,
    Worker,
    World,
    has_recall_tools,
    without_markers,
)
from wire.model_server import Answer, call, say

Worlds = Callable[..., World]
SEARCH = {"call": "search_archive", "input": {"query": "result 1 of anyone"}}
READ_FILE = {"call": "read_file", "input": {"path": "a.py"}}


@pytest.fixture
def begun(client: Client, world: Worlds) -> World:
    """A world in which `client` has archived turns and a new prompt."""
    made = world(Worker())
    made.turns(client, 10)
    client.say("What was the first result?")
    return made


def answers(*script: Answer) -> Callable[[Any], Answer]:
    """Return a model that answers with `script`, then with a text."""
    waiting = list(script)
    return lambda _: waiting.pop(0) if waiting else say("It is done.")


def after_prompt(items: list[Any]) -> list[Any]:
    """Return the items after the prompt of `begun`, without cache markers."""
    place = next(index for index, item in enumerate(items) if "What was the first result?" in json.dumps(item))
    found: list[Any] = without_markers(items[place + 1 :])
    return found


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize("thinking", ["", "I should search."])
def test_recalls_are_answered_and_hidden(client: Client, begun: World, stream: bool, thinking: str) -> None:
    """The model gets the archived text, and the client one response with the texts before and after the recall."""
    begun.answer = answers(
        call(SEARCH, text="Let me look.", thinking=thinking), call(SEARCH), say("It was a line of the file.")
    )
    before = len(begun.sent)
    assert begun.send(client, stream=stream) == []
    assert len(begun.sent) == before + 3
    assert b"result 1 of anyone" in begun.sent[-1]
    seen = json.dumps(client.items)
    assert "Let me look." in seen
    assert "It was a line of the file." in seen
    assert not any(name in seen for name in RECALLS)


@pytest.mark.parametrize("stream", [True, False])
def test_hidden_exchanges_are_restored_in_place(client: Client, begun: World, stream: bool) -> None:
    """The next request repeats the recall where it was, also in another process that opens the folder."""
    begun.answer = answers(call(SEARCH, text="Let me look."), call(READ_FILE))
    assert begun.send(client, stream=stream) == ["read_file"]
    exchange = after_prompt(begun.last(client))
    assert "search_archive" in json.dumps(exchange)
    begun.restart()
    assert begun.send(client, stream=stream) == []
    assert after_prompt(begun.last(client))[: len(exchange)] == exchange


@pytest.mark.parametrize("calls", [(SEARCH, READ_FILE), (READ_FILE, SEARCH), (READ_FILE, SEARCH, READ_FILE, SEARCH)])
@pytest.mark.parametrize("stream", [True, False])
def test_recalls_beside_calls_of_the_client(client: Client, begun: World, calls: Any, stream: bool) -> None:
    """The client sees only its own calls. Its next request gets the results of the others, in their place."""
    begun.answer = answers(call(*calls, text="Both."))
    before = len(begun.sent)
    assert begun.send(client, stream=stream) == ["read_file"] * calls.count(READ_FILE)
    assert len(begun.sent) == before + 1
    begun.restart()
    assert begun.send(client, stream=stream) == []
    sent = json.dumps(begun.last(client))
    assert sent.count('"search_archive"') == calls.count(SEARCH)
    assert "result 1 of anyone" in sent
    assert "search_archive" not in json.dumps(client.items)


@pytest.mark.parametrize("size", [1, 7, 10_000])
def test_streams_can_arrive_in_pieces_of_any_size(client: Client, begun: World, size: int) -> None:
    """The response does not depend on the size of the pieces in which the server's stream arrives."""
    begun.answer = answers(call(SEARCH, text="Let me look."), call(SEARCH, READ_FILE))
    exchange = begun.gateway.begin(client.path, client.headers, client.body())
    stream = begun.stream(exchange, client, size)
    assert client.read_stream(stream) == ["read_file"]
    assert b"search_archive" not in stream


def test_responses_without_recalls_pass_byte_for_byte(client: Client, begun: World) -> None:
    """A stream without calls of recall tools is passed on as it is."""
    sent: list[bytes] = []
    rules = client.rules

    class Recorder:
        check = staticmethod(rules.check)

        @staticmethod
        def events(*args: Any) -> list[bytes]:
            sent.extend(rules.events(*args))
            return sent

    exchange = begun.gateway.begin(client.path, client.headers, client.body())
    assert exchange.reads
    begun.answer = answers(call(READ_FILE, text="A text.", thinking="Hm."))
    client.rules = Recorder
    assert begun.stream(exchange, client) == b"".join(sent)


def test_parts_of_a_stream_are_passed_on_as_they_arrive(client: Client, begun: World) -> None:
    """The client gets a text before the response is complete."""
    exchange = begun.gateway.begin(client.path, client.headers, client.body())
    events = list(client.rules.events(say("The first words."), json.loads(exchange.request), begun))
    received = b"".join(map(exchange.feed, events[: len(events) // 2 + 1]))
    assert b"The firs" in received


def test_chunks_without_choices_hold_nothing_back(world: Worlds) -> None:
    """Azure begins a stream with the results of its filter, in a chunk without choices and id."""
    client = ChatClient()
    made = world(Worker())
    made.turns(client, 10)
    client.say("What was the first result?")
    exchange = made.gateway.begin(client.path, client.headers, client.body())
    first = b'data: {"choices": [], "id": "", "prompt_filter_results": [{"prompt_index": 0}]}\n\n'
    assert exchange.feed(first) == first
    events = list(client.rules.events(call(SEARCH, text="Let me look."), json.loads(exchange.request), made))
    received = b"".join(map(exchange.feed, events[:3]))
    assert received == b"".join(events[:3])
    assert b"Let me" in received
    received += b"".join(map(exchange.feed, events[3:])) + exchange.end()
    assert exchange.again
    second = exchange.feed(first)
    assert json.loads(events[0][6:])["id"].encode() in second
    received += second + made.stream(exchange, client)
    assert client.read_stream(received) == []


def test_recalls_end_at_a_limit(client: Client, begun: World) -> None:
    """A model that only recalls is told to stop, and then the response ends without a call."""
    begun.answer = lambda _: call(SEARCH, text="Again.")
    before = len(begun.sent)
    assert begun.send(client) == []
    assert len(begun.sent) - before == 10
    assert b"too many recalls" in begun.sent[-1]
    client.say("Go on.")
    begun.answer = answers(say("Fine."))
    assert begun.send(client) == []


def test_output_tokens_of_hidden_responses_are_counted(client: Client, begun: World) -> None:
    """The usage of the response has the output tokens of all responses, and the input tokens of the last."""
    begun.answer = answers(
        call(SEARCH, usage={"input": 100, "output": 30}), say("It is so.", usage={"input": 150, "output": 7})
    )
    begun.send(client, stream=False)
    usage = client.last["usage"]
    assert 37 in (usage.get("output_tokens"), usage.get("completion_tokens"))
    assert 150 in (usage.get("input_tokens"), usage.get("prompt_tokens"))


@pytest.mark.parametrize("stream", [True, False])
def test_recalls_are_answered_if_the_server_gives_another_stop_reason(
    client: Client, begun: World, stream: bool
) -> None:
    """Some compatible servers end a response with calls as they end a response without."""
    begun.answer = answers(call(SEARCH, stop="end_turn"), say("It was a line."))
    assert begun.send(client, stream=stream) == []
    assert b"result 1 of anyone" in begun.sent[-1]
    assert "It was a line." in json.dumps(client.items)


def test_a_truncated_recall_is_hidden(client: Client, begun: World) -> None:
    """A recall at the end of a response that reached its limit is not answered, and the stop reason stays."""
    begun.answer = answers(call(SEARCH, text="Let me look.", stop="max_tokens"))
    before = len(begun.sent)
    stream = begun.stream(begun.gateway.begin(client.path, client.headers, client.body()), client)
    assert len(begun.sent) == before + 1
    assert b"search_archive" not in stream
    assert any(name in stream for name in (b'"max_tokens"', b'"length"', b'"max_output_tokens"'))


def test_an_error_after_a_hidden_recall_becomes_an_event(client: Client, begun: World) -> None:
    """If the server refuses the next request, the client's stream ends with the server's error."""
    exchange = begun.gateway.begin(client.path, client.headers, client.body())
    events = client.rules.events(call(SEARCH), json.loads(exchange.request), begun)
    received = b"".join(map(exchange.feed, events)) + exchange.end()
    assert exchange.again
    error = json.dumps(client.rules.error("overloaded_error", "too busy")).encode()
    received += exchange.error(error)
    assert not exchange.again
    assert b"too busy" in received
    assert b"search_archive" not in received
    assert exchange.error(b"<html>bad gateway</html>").count(b"bad gateway") == 1


def test_a_stream_that_breaks_off_is_passed_on_as_far_as_it_came(client: Client, begun: World) -> None:
    """Nothing is asked again, and a second attempt of the client works."""
    exchange = begun.gateway.begin(client.path, client.headers, client.body())
    events = list(client.rules.events(call(SEARCH, text="Let me look."), json.loads(exchange.request), begun))
    received = b"".join(map(exchange.feed, events[:-2])) + exchange.feed(events[-2][:9]) + exchange.end()
    assert not exchange.again
    assert b"Let me" in received
    begun.answer = answers(call(SEARCH), say("Yes."))
    assert begun.send(client) == []


def without_end(events: list[bytes], client: Client) -> bytes:
    """Return a stream without the event that only says that the stream has ended."""
    return b"".join(events if isinstance(client, ResponsesClient) else events[:-1])


@pytest.mark.parametrize("cut", ["the last event", "its empty line", "its last newlines"])
def test_streams_can_end_without_their_last_event_or_its_empty_line(client: Client, begun: World, cut: str) -> None:
    """Some servers leave it out after a complete message. A recall in it is answered all the same."""
    exchange = begun.gateway.begin(client.path, client.headers, client.body())
    events = list(client.rules.events(call(SEARCH, text="Let me look."), json.loads(exchange.request), begun))
    whole = b"".join(events)
    sent = {
        "the last event": without_end(events, client),
        "its empty line": whole.removesuffix(b"\n"),
        "its last newlines": whole.removesuffix(b"\n\n"),
    }[cut]
    received = exchange.feed(sent) + exchange.end()
    assert exchange.again
    assert b"result 1 of anyone" in exchange.request
    received += begun.stream(exchange, client)
    assert client.read_stream(received) == []
    assert "Let me look." in json.dumps(client.items)
    assert "search_archive" not in json.dumps(client.items)


@pytest.mark.parametrize("size", [1, 2, 3])
def test_streams_without_an_end_pass_byte_for_byte(client: Client, begun: World, size: int) -> None:
    """A stream without recalls of which the last bytes are missing is passed on as it is."""
    sent = b"".join(client.rules.events(call(READ_FILE, text="A text."), json.loads(client.body()), begun))[:-size]
    exchange = begun.gateway.begin(client.path, client.headers, client.body())
    assert exchange.feed(sent) + exchange.end() == sent
    assert not exchange.again


@pytest.mark.parametrize(
    "junk", [b"data: {half an eve\n\n", b"data: [1]\n\n", b"event: x\ndata: {}\n\n", b": comment\n\n", b"\n\n"]
)
def test_events_of_an_unknown_form_pass(client: Client, begun: World, junk: bytes) -> None:
    """What is not an event of the API is passed on as it is."""
    exchange = begun.gateway.begin(client.path, client.headers, client.body())
    first, *rest = client.rules.events(say("Yes."), json.loads(exchange.request), begun)
    sent = [first, junk, *rest]
    assert b"".join(map(exchange.feed, sent)) + exchange.end() == b"".join(sent)
    assert not exchange.again


@pytest.mark.parametrize("body", [b"", b"null", b'{"error": {"message": "no"}}', b"<html>", b'{"choices": []}'])
def test_bodies_of_an_unknown_form_pass(client: Client, begun: World, body: bytes) -> None:
    """A response without streaming that is not a response of the API is passed on as it is."""
    exchange = begun.gateway.begin(client.path, client.headers, client.body(stream=False))
    assert exchange.read(body) == body
    assert not exchange.again


def test_an_edited_response_is_not_replaced(client: Client, begun: World) -> None:
    """If the client changes a response, the hidden exchange of the original is not inserted."""
    begun.answer = answers(call(SEARCH, text="Let me look."), say("It was a line."))
    begun.send(client)
    replaced = {
        MessagesClient: {"role": "assistant", "content": "Edited."},
        ChatClient: {"role": "assistant", "content": "Edited."},
        ResponsesClient: {"role": "assistant", "content": [{"type": "output_text", "text": "Edited."}]},
    }[type(client)]
    client.items[-1] = replaced
    client.say("Is it?")
    begun.send(client)
    assert has_recall_tools(json.loads(begun.sent[-1]))
    assert "result 1 of anyone" not in json.dumps(begun.last(client)[-4:])


@pytest.mark.parametrize("stream", [True, False])
def test_responses_are_valid_after_an_edit_before_them(client: Client, begun: World, stream: bool) -> None:
    """A client edits a prompt and keeps what followed: the old recall is not sent, and nothing is refused."""
    looked = call(SEARCH, text="Let me look.", thinking="I should search.")
    begun.answer = answers(looked, call(READ_FILE, thinking="Now the file."))
    assert begun.send(client, stream=stream) == ["read_file"]
    begun.restart()
    place = next(index for index, item in enumerate(client.items) if "Prompt 9." in str(item.get("content")))
    client.items[place] = {"role": "user", "content": "Another prompt. " * 20}
    assert begun.send(client, stream=stream) == []
    assert '"search_archive"' not in json.dumps(after_prompt(begun.last(client)))


def test_hidden_exchanges_are_found_if_the_client_writes_json_another_way(world: Worlds) -> None:
    """A client may write 1.0 as 1, drop fields that are null, and send a text as a list of blocks."""
    client = MessagesClient()
    made = world(Worker())
    made.turns(client, 10)
    client.say("What was the first result?")
    made.answer = answers(
        call(SEARCH, {"call": "read_file", "input": {"line": 1.0, "to": {"end": [2.0]}}}, text="Both.")
    )
    assert made.send(client) == ["read_file"]
    blocks = client.items[-2]["content"]
    assert blocks[-1]["input"] == {"line": 1.0, "to": {"end": [2.0]}}
    blocks[-1] = blocks[-1] | {"input": {"to": {"end": [2]}, "line": 1}}
    made.send(client)
    assert "result 1 of anyone" in json.dumps(after_prompt(made.last(client)))


def test_recalls_work_after_the_files_were_closed(client: Client, begun: World) -> None:
    """If other conversations have displaced the files of a conversation while it streams, they are opened again."""
    exchange = begun.gateway.begin(client.path, client.headers, client.body())
    begun.gateway.close()
    begun.answer = answers(call(SEARCH), say("Here."))
    assert client.read_stream(begun.stream(exchange, client)) == []
    assert b"result 1 of anyone" in begun.sent[-1]
    assert begun.warnings == []


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize("text", [True, False])
def test_results_are_sent_with_the_request_that_continues_a_stored_response(
    world: Worlds, stream: bool, text: bool
) -> None:
    """A client may continue a stored response with its id; then the server needs the results of the recalls too."""
    client = ResponsesClient()
    made = world(Worker())
    made.turns(client, 10)
    client.say("What was the first result?")
    made.answer = answers(call(SEARCH, READ_FILE))
    assert made.send(client, stream=stream) == ["read_file"]
    stored = client.last["id"]
    own = "Never mind." if text else [client.items[-1]]
    body = {"model": "m", "previous_response_id": stored, "input": own, "tools": [client.tool("read_file")]}
    exchange = made.gateway.begin(client.path, client.headers, json.dumps(body).encode())
    assert not exchange.unchanged
    sent = json.loads(exchange.request)
    result, *others = sent.pop("input")
    assert result["type"] == "function_call_output"
    assert "result 1 of anyone" in result["output"]
    assert others == ([{"role": "user", "content": own}] if text else own)
    assert sent == {name: value for name, value in body.items() if name != "input"}
    response = b'{"id": "resp_9", "output": [], "status": "completed"}'
    assert exchange.read(response) == response
    assert not exchange.again
    other = json.dumps(body | {"previous_response_id": "resp_unknown"}).encode()
    assert made.gateway.begin(client.path, client.headers, other).request == other
