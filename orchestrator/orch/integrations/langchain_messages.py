"""LangChain's messages as messages of the Chat Completions API, and back.

LangChain's own objects are sent wherever possible, so this conversion is only what the archiver reads.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final

from ..archival.adapters import to_json_data
from ..gateway.api import decode_value, encode_value
from ..gateway.conversation import Prepared

__all__ = ["chat_message", "with_originals"]

ROLES: Final = {"human": "user", "ai": "assistant", "system": "system", "tool": "tool"}
CALL_TYPES: Final = (
    "tool_use",
    "tool_call",
    "tool_call_chunk",
    "invalid_tool_call",
    "function_call",
    "input_json_delta",
)
"""Types of parts that repeat calls, which a message also has as `tool_calls`."""
THINKING_TYPES: Final = ("thinking", "redacted_thinking", "reasoning")


def chat_message(message: Any) -> dict[str, Any]:
    """Return a message of LangChain as plain data. Raises LookupError or TypeError for other kinds of messages."""
    kind = str(message.type)
    role = ROLES[kind if kind in ROLES else kind.removesuffix("MessageChunk").lower()]
    content = message.content
    if not isinstance(content, str):
        content = [_part(part) for part in content if not _is_left_out(part)]
    plain: dict[str, Any] = {"role": role, "content": to_json_data(content)}
    if role == "tool":
        return plain | {"tool_call_id": message.tool_call_id}
    calls = [
        _call(call, encode_value(to_json_data(call["args"])).decode()) for call in getattr(message, "tool_calls", ())
    ]
    calls += [_call(call, call.get("args") or "") for call in getattr(message, "invalid_tool_calls", ())]
    return plain | ({"tool_calls": calls} if calls else {})


def with_originals(
    prepared: Prepared, messages: Sequence[Any], plain: Sequence[Any], new: Callable[[Any], Any]
) -> list[Any]:
    """Return the messages of a prepared request as objects of LangChain.

    `plain` are `messages` as plain data. A message that was not archived is the same object; the message with the list
    of archives is a copy with this text. `new` converts plain data.
    """
    result: list[Any] = []
    end = len(plain)
    for item, encoded in zip(reversed(prepared.items), reversed(prepared.encoded), strict=True):
        sent = decode_value(encoded)
        place = next((index for index in range(end - 1, -1, -1) if plain[index] == item), None)
        if place is None:
            result.append(new(sent))
            continue
        end = place
        original = messages[place]
        result.append(original if sent == item else _with_text(original, sent["content"][-1]["text"]))
    return result[::-1]


def _with_text(message: Any, text: str) -> Any:
    content = message.content
    parts = [{"type": "text", "text": content}] if isinstance(content, str) else content
    return message.model_copy(update={"content": [*parts, {"type": "text", "text": text}]})


def _call(call: Any, arguments: str) -> dict[str, Any]:
    function = {"name": call.get("name") or "", "arguments": arguments}
    return {"id": call.get("id") or "", "type": "function", "function": function}


def _is_left_out(part: Any) -> bool:
    return isinstance(part, dict) and part.get("type") in (*CALL_TYPES, *THINKING_TYPES)


def _part(part: Any) -> Any:
    """Return a part of a content. Images of all providers become data URLs; other parts stay as they are."""
    match part:
        case str():
            return {"type": "text", "text": part}
        case {"type": "image", "source": {"type": "base64", "media_type": str(kind), "data": str(data)}}:
            pass
        case {"type": "image", "mime_type": str(kind), "base64": str(data)}:
            pass
        case {"type": "image", "mime_type": str(kind), "data": str(data)}:
            pass
        case _:
            return part
    return {"type": "image_url", "image_url": {"url": f"data:{kind};base64,{data}"}}
