"""Message formats of providers: messages are read, written back and restored exactly."""

from __future__ import annotations

import base64
import copy
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orch.archival.adapters import convert_message, decode_message, detect, encode_message, format_named, read_messages
from orch.archival.adapters.base import apply_difference, difference
from orch_protocol.core.errors import ConfigError
from orch_protocol.core.messages import Image, Message, Opaque, Text, Thinking, ToolResult, ToolUse
from pictures import JPEG, png

ANTHROPIC: list[dict[str, Any]] = [
    {"role": "user", "content": "hi"},
    {"role": "user", "content": []},
    {"role": "user", "content": [{"type": "text", "text": "hi", "cache_control": {"type": "ephemeral"}}]},
    {"role": "assistant", "content": [{"type": "thinking", "thinking": "hm", "signature": "s"}]},
    {"role": "assistant", "content": [{"type": "redacted_thinking", "data": "zz"}]},
    {
        "role": "assistant",
        "content": [{"type": "tool_use", "id": "a", "name": "b", "input": {}, "caller": {"type": "direct"}}],
    },
    {"role": "assistant", "content": [{"type": "server_tool_use", "id": "a", "name": "web", "input": {}}]},
    {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "a", "content": "text"}]},
    {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "a"}]},
    {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "a", "content": [], "is_error": False}]},
    {
        "role": "user",
        "content": [
            {"type": "tool_result", "tool_use_id": "a", "is_error": True, "content": [{"type": "text", "text": "x"}]}
        ],
    },
    {
        "role": "user",
        "content": [
            {"type": "tool_result", "tool_use_id": "a", "content": [{"type": "document", "title": "T", "n": 1}]}
        ],
    },
    {
        "role": "user",
        "content": [{"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "AA"}}],
    },
    {"role": "user", "content": [{"type": "image", "source": {"type": "url", "url": "http://x"}}]},
    {"role": "system", "content": "mid"},
]
OPENAI: list[dict[str, Any]] = [
    {"role": "system", "content": "be good"},
    {"role": "developer", "content": "be good", "name": "me"},
    {"role": "user", "content": "hi"},
    {
        "role": "user",
        "content": [
            {"type": "text", "text": "a"},
            {"type": "image_url", "image_url": {"url": "data:image/png;base64,AA"}},
        ],
    },
    {"role": "user", "content": [{"type": "image_url", "image_url": {"url": "http://x", "detail": "low"}}]},
    {"role": "user", "content": [{"type": "input_audio", "input_audio": {"data": "AA"}}]},
    {
        "role": "assistant",
        "content": None,
        "tool_calls": [{"id": "a", "type": "function", "function": {"name": "f", "arguments": '{"x": 1}'}}],
    },
    {
        "role": "assistant",
        "content": "",
        "tool_calls": [{"id": "a", "type": "function", "function": {"name": "f", "arguments": "not json"}}],
    },
    {"role": "assistant", "tool_calls": [{"id": "a", "type": "custom", "custom": {"name": "f", "input": "raw"}}]},
    {"role": "assistant", "content": None, "function_call": {"name": "f", "arguments": "{}"}},
    {"role": "assistant", "content": None, "refusal": "no", "annotations": []},
    {"role": "assistant", "content": [{"type": "text", "text": "a"}], "reasoning_content": "hm"},
    {"role": "tool", "tool_call_id": "a", "content": "text"},
    {
        "role": "tool",
        "tool_call_id": "a",
        "name": "f",
        "content": [{"type": "text", "text": "x"}, {"type": "text", "text": "y"}],
    },
    {"role": "function", "name": "f", "content": "old"},
    {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "hi"}]},
    {
        "type": "message",
        "role": "assistant",
        "id": "m",
        "content": [{"type": "output_text", "text": "hi", "annotations": []}],
    },
    {"type": "function_call", "call_id": "a", "name": "f", "arguments": '{"x":1}', "id": "fc"},
    {"type": "function_call_output", "call_id": "a", "output": "text"},
    {"type": "function_call_output", "call_id": "a", "output": [{"type": "input_text", "text": "x"}]},
    {"type": "reasoning", "id": "r", "summary": [], "encrypted_content": "zz"},
]
RESPONSES: list[dict[str, Any]] = [raw for raw in OPENAI if "type" in raw]
OPENAI = [raw for raw in OPENAI if "type" not in raw]
CASES = (
    [("responses", raw) for raw in RESPONSES]
    + [("anthropic", raw) for raw in ANTHROPIC]
    + [("openai", raw) for raw in OPENAI]
)


def data_url(media_type: str, data: bytes) -> str:
    """Return an image as a data URL."""
    return f"data:{media_type};base64,{base64.b64encode(data).decode()}"


json_values = st.recursive(
    st.one_of(
        st.none(),
        st.booleans(),
        st.integers(-(2**63), 2**64 - 1),
        st.floats(allow_nan=False, allow_infinity=False),
        st.text(max_size=5),
    ),
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(st.text(max_size=3), inner, max_size=3)),
    max_leaves=12,
)


@pytest.mark.parametrize(("name", "raw"), CASES)
def test_messages_round_trip_exactly(name: str, raw: dict[str, Any]) -> None:
    """A stored message decodes to the original, and encoding does not change the original."""
    before = copy.deepcopy(raw)
    format = format_named(name)
    message, rest = encode_message(format, raw)
    assert decode_message(format, message, rest) == raw == before


@given(json_values, json_values)
def test_difference_of_any_two_values_restores_the_second(written: Any, raw: Any) -> None:
    """The restored value has the same types."""
    restored = apply_difference(written, difference(written, raw))
    assert repr_sorted(restored) == repr_sorted(raw)


def repr_sorted(value: Any) -> str:
    """Return `value` as text that distinguishes 1, 1.0 and True and ignores the order of keys."""
    if isinstance(value, dict):
        return "{" + ",".join(f"{key!r}:{repr_sorted(value[key])}" for key in sorted(value)) + "}"
    if isinstance(value, list):
        return "[" + ",".join(map(repr_sorted, value)) + "]"
    return repr(value)


@given(st.sampled_from(CASES), st.dictionaries(st.text(max_size=5), json_values, max_size=2))
def test_unknown_keys_are_kept(case: tuple[str, dict[str, Any]], more: dict[str, Any]) -> None:
    """Keys that a format does not know are restored, too."""
    name, raw = case
    odd = more | raw
    if "role" in raw or "role" not in more:
        format = format_named(name)
        message, rest = encode_message(format, odd)
        assert decode_message(format, message, rest) == odd


def test_common_messages_need_no_stored_difference() -> None:
    """Messages as an SDK returns them need no stored difference, and a plain string needs a short one."""
    for name, raw in [("anthropic", ANTHROPIC[3]), ("openai", OPENAI[2]), ("openai", OPENAI[12])]:
        assert encode_message(format_named(name), raw)[1] is None
    assert encode_message(format_named("anthropic"), ANTHROPIC[0])[1] == {"k": {"content": {"t": 1}}}


@pytest.mark.parametrize(
    "raw", [{"content": None, "refusal": "no"}, {"content": [{"type": "refusal", "refusal": "no"}]}]
)
def test_refusal_is_read_as_text(raw: dict[str, Any]) -> None:
    """Chat completions return a refusal as a field or as a part."""
    assert format_named("openai").read({"role": "assistant"} | raw).content == (Text("no"),)


def test_calls_and_results_are_converted() -> None:
    """Arguments are parsed, or stay text if they are invalid JSON."""
    read = format_named("openai").read
    assert read(OPENAI[6]).content == (ToolUse("a", "f", {"x": 1}),)
    assert read(OPENAI[7]).content == (Text(""), ToolUse("a", "f", {"arguments": "not json"}))
    assert read(OPENAI[12]).content == (ToolResult("a", (Text("text"),)),)
    read = format_named("responses").read
    assert read(RESPONSES[2]).content == (ToolUse("a", "f", {"x": 1}),)
    assert isinstance(read(RESPONSES[5]).content[0], Opaque)
    read = format_named("anthropic").read
    assert read(ANTHROPIC[3]).content == (Thinking("hm", "s", "anthropic"),)
    assert read(ANTHROPIC[10]).content == (ToolResult("a", (Text("x"),), True),)
    assert read(ANTHROPIC[12]).content == (Image("image/png", "AA"),)
    assert isinstance(read(ANTHROPIC[11]).content[0], ToolResult)


@pytest.mark.parametrize("raw", [{"role": "user"}, {"content": "x"}, [], "x", None, {"role": "user", "content": [[]]}])
@pytest.mark.parametrize("name", ["anthropic", "openai", "responses", "orch"])
def test_invalid_message_is_refused(name: str, raw: Any) -> None:
    """A message without a role or with content of an unknown kind raises ConfigError."""
    if name in ("openai", "responses") and raw == {"role": "user"}:
        return  # valid in these formats: a message without content
    with pytest.raises(ConfigError):
        format_named(name).read(raw)


@pytest.mark.parametrize(
    ("url", "error"),
    [
        ("data:image/png;base64,!!!", "is not base64"),
        ("data:image/png;base64,AAAA", "is not an image"),
        ("data:image/tiff;base64,SUkqAAAA", "is not an image"),
        (data_url("image/png", png(2, 1)[:20]), "is truncated"),
        (data_url("image/gif", png(2, 1)), "has the media type 'image/gif', but its data is image/png"),
    ],
)
def test_invalid_image_in_history_is_refused(url: str, error: str) -> None:
    """The error names the message. The check is the same as for images in prompts."""
    part = {"type": "image_url", "image_url": {"url": url}}
    source = {"type": "base64", "media_type": url[5:].partition(";")[0], "data": url.partition(",")[2]}
    for block in (part, {"type": "image", "source": source}):
        with pytest.raises(ConfigError, match=rf"history\[1\]: .*{error}"):
            read_messages([{"role": "user", "content": "hi"}, {"role": "user", "content": [block]}], "history")


def test_image_jpg_is_read_as_image_jpeg() -> None:
    """OpenAI accepts both names of the media type, and other providers only the standard name."""
    part = {"type": "image_url", "image_url": {"url": data_url("image/jpg", JPEG)}}
    [message] = read_messages([{"role": "user", "content": [part]}])
    assert message.content == (Image.from_bytes(JPEG),)


def test_message_format_is_detected() -> None:
    """Item types and block types identify the format. The default is `openai`."""
    assert detect(ANTHROPIC).name == "anthropic"
    for kind in ("server_tool_use", "web_search_tool_result", "redacted_thinking"):
        assert detect([{"role": "assistant", "content": [{"type": kind}]}]).name == "anthropic"
    assert detect(OPENAI).name == "openai"
    assert detect(RESPONSES).name == "responses"
    assert detect([]).name == "openai"


def test_messages_are_converted_between_formats() -> None:
    """A message converted to another format is a valid message of that format."""
    turn = Message("assistant", (Text("look"), ToolUse("a", "f", {}), ToolUse("b", "f", {})))
    results = Message("user", (ToolResult("a", (Text("x"),)), ToolResult("b", (Text("y"),)), Text("and?")))
    chat = format_named("openai")
    assert [call["id"] for call in convert_message(chat, turn)[0]["tool_calls"]] == ["a", "b"]
    assert [raw["role"] for raw in convert_message(chat, results)] == ["tool", "tool", "user"]
    items = [raw for message in (turn, results) for raw in convert_message(format_named("responses"), message)]
    assert [raw.get("type", raw.get("role")) for raw in items] == [
        "assistant",
        "function_call",
        "function_call",
        "function_call_output",
        "function_call_output",
        "user",
    ]
    assert len(convert_message(format_named("anthropic"), results)) == 1
