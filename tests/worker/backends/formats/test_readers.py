"""Readers of responses: which events count, and which errors they report."""

from __future__ import annotations

import json
from typing import Any

import pytest

from orch_protocol.core.messages import Text
from orch_worker.backends.formats.chat import ChatFormat
from orch_worker.backends.formats.format import ApiFormat, ResponseReader
from orch_worker.backends.formats.messages import MessagesFormat
from orch_worker.backends.formats.provider_error import ProviderError, ReportedError
from orch_worker.backends.formats.responses import ResponsesFormat
from orch_worker.backends.formats.server_sent_events import ServerSentEvent

FORMATS: dict[str, ApiFormat] = {"messages": MessagesFormat(), "chat": ChatFormat(), "responses": ResponsesFormat()}
OPENAI = ["chat", "responses"]
START = {"type": "content_block_start", "index": 0, "content_block": {"type": "text", "text": ""}}
DELTA = {"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": "hi"}}


def reader(api: str) -> ResponseReader:
    return FORMATS[api].new_reader("acme")


def event(name: str, value: Any) -> ServerSentEvent:
    return ServerSentEvent(name, value if isinstance(value, str) else json.dumps(value))


def reported(api: str, name: str, value: Any) -> ProviderError:
    """Return the error that the reader reports for an event."""
    with pytest.raises(ReportedError) as caught:
        reader(api).feed(event(name, value))
    return caught.value.provider_error


def test_messages_api_ignores_pings_and_events_without_a_name_or_data() -> None:
    reading = reader("messages")
    reading.feed(event("content_block_start", START))
    for ignored in (event("", DELTA), event("ping", DELTA), event("", "{nope"), event("x", "")):
        assert reading.feed(ignored) == ""
    assert reading.feed(event("content_block_delta", DELTA)) == "hi"
    assert reading.blocks() == [Text("hi")]


@pytest.mark.parametrize(
    ("data", "text", "kinds"),
    [
        ({"error": {"type": "overloaded_error", "message": "Overloaded"}}, "Overloaded", ("overloaded_error",)),
        ({"error": "only text"}, "only text", ()),
        ('"a JSON string"', "a JSON string", ()),
        ("no JSON", "no JSON", ()),
        ("{nope", "{nope", ()),
        ("", "OK (the response has no message)", ()),
    ],
)
def test_error_event_of_the_messages_api_is_reported(data: Any, text: str, kinds: tuple[str, ...]) -> None:
    assert reported("messages", "error", data) == ProviderError(text, 200, kinds)


@pytest.mark.parametrize("api", OPENAI)
@pytest.mark.parametrize("name", ["", "error", "response.created"])
@pytest.mark.parametrize(
    ("error", "expected"),
    [
        ({"message": "no", "code": "server_error"}, ProviderError("no", 0, ("server_error",))),
        ({"message": "busy", "code": 503}, ProviderError("busy", 503, ("503",))),
        ("only text", ProviderError("only text")),
        (["a", "b"], ProviderError("a; b")),
    ],
)
def test_error_field_of_any_event_of_openai_is_reported(
    api: str, name: str, error: Any, expected: ProviderError
) -> None:
    assert reported(api, name, {"error": error}) == expected


@pytest.mark.parametrize("api", OPENAI)
@pytest.mark.parametrize("error", [None, "", {}, []])
def test_empty_error_field_is_no_error(api: str, error: Any) -> None:
    assert reader(api).feed(event("", {"error": error})) == ""


@pytest.mark.parametrize("api", OPENAI)
@pytest.mark.parametrize("mark", ["[DONE]", "[DONE] ", "[DONE]\n"])
def test_nothing_after_the_end_mark_is_read(api: str, mark: str) -> None:
    reading = reader(api)
    reading.feed(ServerSentEvent("", mark))
    assert reading.ended
    for ignored in ("{nope", '{"error": "late"}', "[1]"):
        assert reading.feed(ServerSentEvent("", ignored)) == ""


@pytest.mark.parametrize(("api", "done"), [("chat", True), ("responses", False)])
def test_end_mark_completes_only_chat_completions(api: str, done: bool) -> None:
    """A response of the Responses API is complete when an event says so."""
    reading = reader(api)
    reading.feed(ServerSentEvent("", "[DONE]"))
    assert reading.done is done


@pytest.mark.parametrize("api", FORMATS)
@pytest.mark.parametrize(
    ("data", "error"),
    [
        ("{nope", "Expecting property name enclosed in double quotes: line 1 column 2"),
        ("nope", "Expecting value: line 1 column 1"),
        ("[1]", r"an event is \[1\] instead of a JSON object"),
        ("null", "an event is None instead of a JSON object"),
    ],
)
def test_malformed_data_is_a_readable_error(api: str, data: str, error: str) -> None:
    with pytest.raises(ValueError, match=error):
        reader(api).feed(event("x", data))


@pytest.mark.parametrize(
    ("api", "value"),
    [
        ("messages", {"type": "message_delta", "delta": None}),
        ("chat", {"object": "message_delta", "choices": 1}),
        ("responses", {"type": "response.completed"}),
    ],
)
def test_event_with_an_unexpected_shape_is_named(api: str, value: dict[str, Any]) -> None:
    kind = value.get("type", value.get("object"))
    with pytest.raises(ValueError, match=f"an event of type '{kind}' has an unexpected shape"):
        reader(api).feed(event("x", value))
