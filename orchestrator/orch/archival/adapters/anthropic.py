"""Messages of the Anthropic Messages API.

A message has a role, and its content is a string or a list of typed blocks.
"""

from __future__ import annotations

from typing import Any, Final

from orch_protocol.core.errors import ConfigError
from orch_protocol.core.messages import Block, Image, Message, Opaque, Text, Thinking, ToolResult, ToolUse
from orch_worker.backends.model_families import CLAUDE
from orch_worker.conversation.tokens import strings

from .base import to_json_data

__all__ = ["FORMAT"]

PROVIDER: Final = "anthropic"
ROLES: Final = ("user", "assistant", "system")


class _Anthropic:
    name = PROVIDER
    provider = PROVIDER
    ratios = CLAUDE
    separate_blocks: tuple[type, ...] = ()

    def read(self, raw: Any) -> Message:
        raw = to_json_data(raw)
        if not isinstance(raw, dict) or raw.get("role") not in ROLES:
            role = raw.get("role") if isinstance(raw, dict) else raw
            raise ConfigError(f"a message must have the role user, assistant or system; got {role!r}")
        content = raw.get("content")
        if isinstance(content, str):
            return Message(raw["role"], (Text(content),))
        if not isinstance(content, list):
            raise ConfigError(f"the content of a message must be text or a list of blocks; got {content!r:.60}")
        return Message(raw["role"], tuple(map(_decode_block, content)))

    def write(self, message: Message) -> dict[str, Any]:
        return {"role": message.role, "content": list(map(_encode_block, message.content))}

    def with_text(self, message: Any, text: str) -> dict[str, Any]:
        raw: dict[str, Any] = to_json_data(message)
        content = raw["content"]
        blocks = [{"type": "text", "text": content}] if isinstance(content, str) else content
        return raw | {"content": [*blocks, {"type": "text", "text": text}]}

    def text(self, text: str) -> dict[str, Any]:
        return {"role": "user", "content": [{"type": "text", "text": text}]}

    def as_user(self, message: Any) -> Any:
        return message  # the caller knows whether the model accepts system messages

    def tool(self, name: str, description: str, schema: dict[str, Any]) -> dict[str, Any]:
        return {"name": name, "description": description, "input_schema": schema}


FORMAT: Final = _Anthropic()


def _decode_block(raw: Any) -> Block:
    if not isinstance(raw, dict):
        raise ConfigError(f"a block must be an object with a type; got {raw!r:.60}")
    match raw:
        case {"type": "text", "text": str(text)}:
            return Text(text)
        case {"type": "thinking", "thinking": str(text)}:
            signature = raw.get("signature")
            return Thinking(text, signature if isinstance(signature, str) else None, PROVIDER)
        case {"type": "image", "source": {"type": "base64", "media_type": str(kind), "data": str(data)}}:
            return Image(kind, data)
        case {"type": "tool_use", "id": str(id), "name": str(name), "input": dict(input)}:
            return ToolUse(id, name, input)
        case {"type": "tool_result", "tool_use_id": str(id)}:
            content = raw.get("content")
            parts = [{"type": "text", "text": content}] if isinstance(content, str) else content or []
            return ToolResult(id, tuple(map(_decode_part, parts)), raw.get("is_error") is True)
        case _:
            return Opaque(PROVIDER, raw)


def _decode_part(raw: Any) -> Text | Image:
    """Return a part of a tool result as text or image. A block of another type becomes text."""
    block = _decode_block(raw)
    return block if isinstance(block, (Text, Image)) else Text("\n".join(strings(raw)))


def _encode_block(block: Block) -> dict[str, Any]:
    match block:
        case Text(text):
            return {"type": "text", "text": text}
        case Thinking(thinking, signature):
            return {"type": "thinking", "thinking": thinking} | ({"signature": signature} if signature else {})
        case Image(media_type, data):
            return {"type": "image", "source": {"type": "base64", "media_type": media_type, "data": data}}
        case ToolUse(id, name, input):
            return {"type": "tool_use", "id": id, "name": name, "input": input}
        case ToolResult(id, content, is_error):
            encoded = {"type": "tool_result", "tool_use_id": id, "content": list(map(_encode_block, content))}
            return encoded | ({"is_error": True} if is_error else {})
        case Opaque(_, raw):
            return raw if isinstance(raw, dict) else {"type": "text", "text": str(raw)}
