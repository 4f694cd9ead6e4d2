"""LangChain's messages are read as chat messages, and its own objects are sent."""

from __future__ import annotations

from typing import Any

import pytest

from orch.archival.adapters import format_named
from orch.gateway.api import encode_value
from orch.gateway.conversation import Prepared
from orch.integrations.langchain_messages import chat_message, with_originals
from orch_protocol.core.messages import Image, Text, ToolResult, ToolUse


class Lang:
    """A message with the attributes of LangChain's."""

    def __init__(self, type: str, content: Any, **more: Any) -> None:
        self.type = type
        self.content = content
        self.__dict__ |= more

    def model_copy(self, *, update: dict[str, Any]) -> Lang:
        """Return a copy with other attributes."""
        return Lang(**(self.__dict__ | update))


def call(name: str, args: Any, id: str | None = "c1") -> dict[str, Any]:
    """Return a call as LangChain stores it."""
    return {"name": name, "args": args, "id": id, "type": "tool_call"}


DATA = "iVBORw0KGgo="
IMAGES = [
    {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{DATA}"}},
    {"type": "image", "base64": DATA, "mime_type": "image/png"},
    {"type": "image", "source_type": "base64", "data": DATA, "mime_type": "image/png"},
    {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": DATA}},
]


@pytest.mark.parametrize("image", IMAGES)
def test_images_of_all_providers_are_read(image: Any) -> None:
    """In prompts and in results of tools."""
    read = format_named("openai").read
    message = read(chat_message(Lang("human", ["Look", image])))
    assert message.content == (Text("Look"), Image("image/png", DATA))
    result = read(chat_message(Lang("tool", [{"type": "text", "text": "Here"}, image], tool_call_id="c1")))
    assert result.content == (ToolResult("c1", (Text("Here"), Image("image/png", DATA))),)


def test_calls_are_read_once() -> None:
    """Providers repeat calls in the content. Calls with invalid arguments count too, because results answer them."""
    content = [
        {"type": "thinking", "thinking": "Hm.", "signature": "s"},
        {"type": "text", "text": "I will."},
        {"type": "tool_use", "id": "c1", "name": "read", "input": {"path": "a"}},
    ]
    invalid = [{"name": "read", "args": "{", "id": "c2", "error": "bad", "type": "invalid_tool_call"}]
    for kind in ("ai", "AIMessageChunk"):
        plain = chat_message(Lang(kind, content, tool_calls=[call("read", {"path": "a"})], invalid_tool_calls=invalid))
        assert format_named("openai").read(plain).content == (
            Text("I will."),
            ToolUse("c1", "read", {"path": "a"}),
            ToolUse("c2", "read", {"arguments": "{"}),
        )


@pytest.mark.parametrize("kind", ["remove", "chat", "function"])
def test_other_kinds_of_messages_are_refused(kind: str) -> None:
    """The middleware then sends the conversation unchanged."""
    with pytest.raises(LookupError):
        chat_message(Lang(kind, "x"))


def prepared(items: list[Any], listed: int) -> Prepared:
    """Return a prepared request. The item `listed` ends with the list of archives."""
    sent = list(items)
    sent[listed] = format_named("openai").with_text(items[listed], "# Archived turns")
    return Prepared(items, [encode_value(item) for item in sent], listed, "", ["a1"])


def test_original_messages_are_sent() -> None:
    """Also messages between records. A message that equals a later one is not mistaken for it."""
    messages = [
        Lang("human", "Go"),
        Lang("ai", [{"type": "thinking", "thinking": "1", "signature": "s1"}, {"type": "text", "text": "ok"}]),
        Lang("human", "Archived"),
        Lang("ai", "long"),
        Lang("human", [{"type": "text", "text": "Go"}]),
        Lang("ai", [{"type": "thinking", "thinking": "2", "signature": "s2"}, {"type": "text", "text": "ok"}]),
        Lang("human", "Last"),
    ]
    plain = [chat_message(message) for message in messages]
    record = {"role": "assistant", "content": "[archived turn]"}
    items = [plain[0], plain[1], plain[2], record, plain[4], plain[5], plain[6]]
    sent = with_originals(prepared(items, 4), messages, plain, lambda item: ("new", item))
    assert sent[:3] == messages[:3]
    assert sent[3] == ("new", record)
    assert sent[4].content == [{"type": "text", "text": "Go"}, {"type": "text", "text": "# Archived turns"}]
    assert sent[5:] == messages[5:]
    assert messages[4].content == [{"type": "text", "text": "Go"}]
    sent = with_originals(prepared(items, 6), messages, plain, lambda item: ("new", item))
    assert sent[6].content == [{"type": "text", "text": "Last"}, {"type": "text", "text": "# Archived turns"}]
    assert messages[6].content == "Last"
