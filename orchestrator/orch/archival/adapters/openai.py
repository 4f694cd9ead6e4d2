"""Messages of OpenAI's chat completions.

Tool calls are fields of a message, and each tool result is a separate message.
"""

from __future__ import annotations

import json
from typing import Any, Final, Literal

import msgspec

from orch_protocol.core.errors import ConfigError
from orch_protocol.core.messages import Block, Image, Message, Opaque, Text, ToolResult, ToolUse, text_of, tool_uses
from orch_worker.backends.model_families import GPT
from orch_worker.backends.normalize_messages import SYSTEM_NOTE
from orch_worker.conversation.tokens import strings

from .base import role_of, to_json_data

__all__ = ["FORMAT", "PROVIDER", "encode_arguments", "parse_arguments", "tool_result_parts"]

PROVIDER: Final = "openai"
ROLES: Final[dict[str, Literal["user", "assistant", "system"]]] = {
    "user": "user",
    "assistant": "assistant",
    "system": "system",
    "developer": "system",
}


class _OpenAI:
    name = PROVIDER
    provider = PROVIDER
    ratios = GPT
    separate_blocks: tuple[type, ...] = (ToolResult,)

    def read(self, raw: Any) -> Message:
        raw = to_json_data(raw)
        if not isinstance(raw, dict):
            raise ConfigError(f"a message must be an object with a role; got {raw!r:.60}")
        role = raw.get("role")
        if role in ("tool", "function"):
            id = raw.get("tool_call_id") or raw.get("name") or ""
            return Message("user", (ToolResult(str(id), tuple(tool_result_parts(raw.get("content")))),))
        if role not in ROLES:
            raise ConfigError(f"a message must have the role user, assistant, system, developer or tool; got {role!r}")
        content = raw.get("content")
        if not isinstance(content, (str, list, type(None))):
            raise ConfigError(f"the content of a message must be text or a list of parts; got {content!r:.60}")
        blocks = [Text(content)] if isinstance(content, str) else [_decode_part(part) for part in content or []]
        if role == "assistant":
            refusal = raw.get("refusal")
            blocks += [Text(refusal)] if refusal and isinstance(refusal, str) else []
            blocks += _decode_calls(raw)
        return Message(ROLES[role], tuple(blocks))

    def write(self, message: Message) -> dict[str, Any]:
        match message.content:
            case [ToolResult(id, content, _)]:
                text = "\n".join(part.text for part in content if isinstance(part, Text))
                return {"role": "tool", "tool_call_id": id, "content": text}
        parts = [_encode_block(block) for block in message.content if not isinstance(block, (ToolUse, ToolResult))]
        plain_text = len(parts) == 1 and parts[0].get("type") == "text"
        written: dict[str, Any] = {"role": message.role, "content": parts[0]["text"] if plain_text else parts or None}
        if uses := tool_uses(message):
            written["tool_calls"] = [_encode_call(use) for use in uses]
        return written

    def with_text(self, message: Any, text: str) -> dict[str, Any]:
        raw: dict[str, Any] = to_json_data(message)
        content = raw.get("content")
        parts = [{"type": "text", "text": content}] if isinstance(content, str) else content or []
        return raw | {"content": [*parts, {"type": "text", "text": text}]}

    def text(self, text: str) -> dict[str, Any]:
        return {"role": "user", "content": text}

    def as_user(self, message: Any) -> Any:
        if ROLES.get(role_of(message) or "") != "system":
            return message
        raw = to_json_data(message)
        content = raw.get("content")
        if isinstance(content, list):
            return {"role": "user", "content": [{"type": "text", "text": SYSTEM_NOTE}, *content]}
        return {"role": "user", "content": f"{SYSTEM_NOTE}\n\n{content or ''}"}

    def tool(self, name: str, description: str, schema: dict[str, Any]) -> dict[str, Any]:
        return {"type": "function", "function": {"name": name, "description": description, "parameters": schema}}


FORMAT: Final = _OpenAI()


def _decode_calls(raw: dict[str, Any]) -> list[Block]:
    blocks: list[Block] = []
    for call in raw.get("tool_calls") or []:
        match call:
            case {"id": str(id), "function": {"name": str(name), "arguments": str(text)}}:
                blocks.append(ToolUse(id, name, parse_arguments(text)))
            case {"id": str(id), "custom": {"name": str(name), "input": str(text)}}:
                blocks.append(ToolUse(id, name, {"input": text}))
            case _:
                blocks.append(Opaque(PROVIDER, call))
    match raw.get("function_call"):
        case {"name": str(name), "arguments": str(text)}:
            blocks.append(ToolUse(name, name, parse_arguments(text)))
    return blocks


def parse_arguments(text: str) -> dict[str, Any]:
    """Return the tool arguments in `text`, which a model wrote as JSON.

    If `text` is not valid JSON, return `text` under the key "arguments".
    """
    try:
        parsed = msgspec.json.decode(text)
    except (msgspec.MsgspecError, RecursionError, UnicodeError):
        parsed = None
    return parsed if isinstance(parsed, dict) else {"arguments": text}


def encode_arguments(input: dict[str, Any]) -> str:
    """Return tool arguments as JSON text."""
    return json.dumps(input, ensure_ascii=False, separators=(",", ":"))


def _encode_call(use: ToolUse) -> dict[str, Any]:
    return {"id": use.id, "type": "function", "function": {"name": use.name, "arguments": encode_arguments(use.input)}}


def tool_result_parts(content: Any) -> list[Text | Image]:
    """Return the content of a tool result as text and images."""
    if isinstance(content, str):
        return [Text(content)]
    parts = content if isinstance(content, list) else [content] if content is not None else []
    blocks = [_decode_part(part) for part in parts]
    return [
        block if isinstance(block, (Text, Image)) else Text("\n".join(strings(part)))
        for block, part in zip(blocks, parts, strict=True)
    ]


def _decode_part(raw: Any) -> Block:
    match raw:
        case {"type": "text" | "input_text" | "output_text", "text": str(text)}:
            return Text(text)
        case {"type": "refusal", "refusal": str(text)}:
            return Text(text)
        case {"type": "image_url", "image_url": {"url": str(url)}} | {"type": "input_image", "image_url": str(url)} if (
            url.startswith("data:image/") and ";base64," in url
        ):
            kind, _, data = url.removeprefix("data:").partition(";base64,")
            return Image("image/jpeg" if kind == "image/jpg" else kind, data)
        case {"type": str()}:
            return Opaque(PROVIDER, raw)
    raise ConfigError(f"a part of a message's content must be an object with a type; got {raw!r:.60}")


def _encode_block(block: Block) -> dict[str, Any]:
    match block:
        case Text(text):
            return {"type": "text", "text": text}
        case Image(media_type, data):
            return {"type": "image_url", "image_url": {"url": f"data:{media_type};base64,{data}"}}
        case Opaque(_, dict(raw)):
            return raw
        case _:
            return {"type": "text", "text": text_of(Message("assistant", (block,)))}
