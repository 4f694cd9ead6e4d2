"""Items of OpenAI's responses API. Messages have a role. Tool calls and their outputs have a type."""

from __future__ import annotations

from typing import Any, Final

from orch_protocol.core.errors import ConfigError
from orch_protocol.core.messages import Block, Image, Message, Opaque, Text, ToolResult, ToolUse

from .base import to_json_data
from .openai import FORMAT as CHAT
from .openai import PROVIDER, encode_arguments, parse_arguments, tool_result_parts

__all__ = ["FORMAT"]


class _Responses:
    name = "responses"
    provider = PROVIDER
    ratios = CHAT.ratios
    separate_blocks: tuple[type, ...] = (ToolUse, ToolResult, Opaque)

    def read(self, raw: Any) -> Message:
        raw = to_json_data(raw)
        match raw:
            case {"role": _}:
                return CHAT.read(raw)
            case {"type": "function_call", "call_id": str(id), "name": str(name), "arguments": str(text)}:
                return Message("assistant", (ToolUse(id, name, parse_arguments(text)),))
            case {"type": "function_call_output", "call_id": str(id)}:
                return Message("user", (ToolResult(id, tuple(tool_result_parts(raw.get("output")))),))
            case {"type": str()}:
                return Message("assistant", (Opaque(PROVIDER, raw),))
        raise ConfigError(f"an item must have a role or a type; got {raw!r:.80}")

    def write(self, message: Message) -> dict[str, Any]:
        match message.content:
            case [ToolUse(id, name, input)]:
                return {"type": "function_call", "call_id": id, "name": name, "arguments": encode_arguments(input)}
            case [ToolResult(id, content, _)]:
                text = "\n".join(part.text for part in content if isinstance(part, Text))
                return {"type": "function_call_output", "call_id": id, "output": text}
            case [Opaque(_, {"type": str()} as raw)] if message.role == "assistant":
                return dict(raw)
            case [Text(text)]:
                return {"role": message.role, "content": text}
        kind = "output_text" if message.role == "assistant" else "input_text"
        return {"role": message.role, "content": [_encode_item(block, kind) for block in message.content]}

    def with_text(self, message: Any, text: str) -> dict[str, Any]:
        raw: dict[str, Any] = to_json_data(message)
        content = raw.get("content")
        parts = [{"type": "input_text", "text": content}] if isinstance(content, str) else content or []
        return raw | {"content": [*parts, {"type": "input_text", "text": text}]}

    def text(self, text: str) -> dict[str, Any]:
        return {"role": "user", "content": text}

    def as_user(self, message: Any) -> Any:
        raw = CHAT.as_user(message)
        if raw is message or isinstance(raw["content"], str):
            return raw
        return raw | {"content": [part | {"type": "input_text"} if "text" in part else part for part in raw["content"]]}

    def tool(self, name: str, description: str, schema: dict[str, Any]) -> dict[str, Any]:
        # Without this setting, the API treats every parameter as required.
        return {"type": "function", "name": name, "description": description, "parameters": schema, "strict": False}


FORMAT: Final = _Responses()


def _encode_item(block: Block, kind: str) -> dict[str, Any]:
    match block:
        case Text(text):
            return {"type": kind, "text": text}
        case Image(media_type, data):
            return {"type": "input_image", "image_url": f"data:{media_type};base64,{data}"}
        case Opaque(_, dict(raw)):
            return raw
        case _:
            return {"type": kind, "text": ""}
