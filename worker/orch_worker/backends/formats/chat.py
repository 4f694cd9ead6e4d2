"""The format of the Chat Completions API.

Tool calls are fields of a message, and each tool result is a separate message.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from typing import Any, Final, Literal

from orch_protocol.core.errors import ConfigError
from orch_protocol.core.messages import (
    INVALID_INPUT,
    Block,
    Image,
    Message,
    Opaque,
    StopReason,
    Text,
    Thinking,
    ToolResult,
    ToolUse,
    text_of,
    tool_uses,
)

from .format import ModelRequest, ResponseReader, text_in
from .normalize_messages import join_surrogates, normalize_messages, parse_input, text_of_part
from .openai import (
    OpenAIReader,
    arguments,
    compact_json,
    data_url,
    decode_part,
    decode_result,
    own_fields,
    parse_arguments,
    provider_requirements,
    result_text,
)
from .provider_error import ProviderError, ReportedError
from .reported_usage import ReportedUsage
from .server_sent_events import ServerSentEvent

__all__ = ["ChatFormat", "decode_message", "encode_message", "encode_tool", "read_usage"]

ROLES: Final[dict[str, Literal["user", "assistant", "system"]]] = {
    "user": "user",
    "assistant": "assistant",
    "system": "system",
    "developer": "system",
}
IDS: Final = re.compile(r"[!-~]{1,40}")
FINISHES: Final[dict[str, StopReason]] = {
    "stop": "end_turn",
    "length": "max_tokens",
    "tool_calls": "tool_use",
    "function_call": "tool_use",
    "content_filter": "refusal",
    # Reasons of compatible servers for incomplete responses.
    "model_length": "max_tokens",
    "max_tokens": "max_tokens",
    "error": "error",
    "abort": "error",
    "insufficient_system_resource": "error",
}
REQUIRED_WITH_CALLS: Final = "reasoning_content"
"""Servers with this field, such as Moonshot's and DeepSeek's, refuse a message with calls and without reasoning."""
NO_REASONING: Final = "(not recorded)"
"""Reasoning of calls that another model made."""


class ChatFormat:
    """Requests and responses of the API. `reasoning_field` is the field of reasoning in plain text, if any."""

    def __init__(self, reasoning_field: str = "") -> None:
        self._reasoning_field = reasoning_field

    def request(self, request: ModelRequest) -> dict[str, Any]:
        """Return the body of the request."""
        flags = request.model.flags
        wire: list[dict[str, Any]] = [{"role": "system", "content": request.system}] if request.system.strip() else []
        for message in normalize_messages(request.messages, provider_requirements(request, IDS)):
            wire += _wire_messages(message, self._reasoning_field)
        if request.tail:
            wire.append({"role": "user", "content": request.tail})
        fields = {
            "model": request.name,
            "messages": wire,
            "tools": [encode_tool(tool.name, tool.description, tool.input_schema) for tool in request.tools],
            flags.max_tokens_field: request.max_output_tokens,
            "stream": True,
            "stream_options": {"include_usage": True},
        }
        kept = {name: value for name, value in fields.items() if value}
        return kept | own_fields(request, store=flags.never_store) | request.model.body

    def new_reader(self, provider: str) -> ResponseReader:
        """Return a reader for one response."""
        return _ChunkReader(provider, self._reasoning_field)


def decode_message(raw: Any, provider: str) -> Message:
    """Return `raw`, a message as JSON data. Raise ConfigError if it is not valid.

    Calls and parts of other types belong to `provider`.
    """
    if not isinstance(raw, dict):
        raise ConfigError(f"a message must be an object with a role; got {raw!r:.60}")
    role, content = raw.get("role"), raw.get("content")
    if role in ("tool", "function"):
        return decode_result(str(raw.get("tool_call_id") or raw.get("name") or ""), content)
    if role not in ROLES:
        raise ConfigError(f"a message must have the role user, assistant, system, developer or tool; got {role!r}")
    if not isinstance(content, (str, list, type(None))):
        raise ConfigError(f"the content of a message must be text or a list of parts; got {content!r:.60}")
    blocks = [Text(content)] if isinstance(content, str) else [decode_part(part, provider) for part in content or []]
    if role == "assistant":
        refusal = raw.get("refusal")
        blocks += [Text(refusal)] if refusal and isinstance(refusal, str) else []
        blocks += _decode_calls(raw, provider)
    return Message(ROLES[role], tuple(blocks))


def encode_message(message: Message) -> dict[str, Any]:
    """Return `message` as JSON data. A message with the result of a call must contain nothing else."""
    match message.content:
        case [ToolResult(id, content, _)]:
            return _result(id, "\n".join(part.text for part in content if isinstance(part, Text)))
    parts = [_encode_block(block) for block in message.content if not isinstance(block, (ToolUse, ToolResult))]
    plain_text = len(parts) == 1 and parts[0].get("type") == "text"
    encoded: dict[str, Any] = {"role": message.role, "content": parts[0]["text"] if plain_text else parts or None}
    if calls := tool_uses(message):
        encoded["tool_calls"] = [_call(call, compact_json(call.input)) for call in calls]
    return encoded


def encode_tool(name: str, description: str, schema: dict[str, Any]) -> dict[str, Any]:
    """Return the definition of a tool."""
    return {"type": "function", "function": {"name": name, "description": description, "parameters": schema}}


def _decode_calls(raw: dict[str, Any], provider: str) -> list[Block]:
    blocks: list[Block] = []
    for call in raw.get("tool_calls") or []:
        match call:
            case {"function": dict(function)}:
                given = parse_arguments(function.get("arguments"))
                blocks.append(ToolUse(text_in(call, "id"), text_in(function, "name"), given))
            case {"custom": {"input": str(text)} as custom}:
                blocks.append(ToolUse(text_in(call, "id"), text_in(custom, "name"), {"input": text}))
            case _:
                blocks.append(Opaque(provider, call))
    match raw.get("function_call"):
        case {"name": str(name), "arguments": given}:
            blocks.append(ToolUse(name, name, parse_arguments(given)))
    return blocks


def _encode_block(block: Block) -> dict[str, Any]:
    match block:
        case Text() | Image():
            return _part(block)
        case Opaque(_, dict(raw)):
            return raw
    return _part(Text(text_of(Message("assistant", (block,)))))


def _part(block: Text | Image) -> dict[str, Any]:
    if isinstance(block, Text):
        return {"type": "text", "text": block.text}
    return {"type": "image_url", "image_url": {"url": data_url(block)}}


def _call(call: ToolUse, arguments: str) -> dict[str, Any]:
    return {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": arguments}}


def _result(id: str, text: str) -> dict[str, Any]:
    return {"role": "tool", "tool_call_id": id, "content": text}


def _wire_messages(message: Message, reasoning_field: str) -> Iterator[dict[str, Any]]:
    if message.role == "system":
        yield {"role": "system", "content": text_of(message)}
    elif message.role == "assistant":
        yield _assistant(message, reasoning_field)
    else:
        parts: list[dict[str, Any]] = []
        for block in message.content:
            if isinstance(block, ToolResult):
                yield _result(block.tool_use_id, result_text(block))
                for image in block.content:
                    if isinstance(image, Image):  # a tool message can only contain text
                        parts += _parts([Text(image.text), image])
            else:
                parts += _parts([block])
        if parts:
            plain = all(part.get("type") == "text" for part in parts)
            yield {"role": "user", "content": "\n\n".join(part["text"] for part in parts) if plain else parts}


def _assistant(message: Message, reasoning_field: str) -> dict[str, Any]:
    wire_message: dict[str, Any] = {"role": "assistant", "content": text_of(message) or None}
    if calls := tool_uses(message):
        wire_message["tool_calls"] = [_call(call, arguments(call)) for call in calls]
    elif wire_message["content"] is None:
        wire_message["content"] = ""
    reasoning = "".join(block.thinking for block in message.content if isinstance(block, Thinking))
    if calls and reasoning_field == REQUIRED_WITH_CALLS:
        reasoning = reasoning or NO_REASONING
    return wire_message | ({reasoning_field: reasoning} if reasoning_field and reasoning else {})


def _parts(blocks: Sequence[Block]) -> Iterator[dict[str, Any]]:
    for block in blocks:
        if isinstance(block, Text | Image):
            yield _part(block)
        elif isinstance(block, Opaque):
            yield _own_part(block.raw)


def _own_part(raw: Any) -> dict[str, Any]:
    """Return a part of a user message. A part of the Responses API is converted, or replaced by a text."""
    match raw:
        case {"type": "input_image", "image_url": str(url)}:
            return {"type": "image_url", "image_url": {"url": url, "detail": raw.get("detail", "auto")}}
        case {"type": "input_file"} if "file_url" not in raw:
            return {"type": "file", "file": {name: value for name, value in raw.items() if name != "type"}}
        case {"type": "text" | "image_url" | "input_audio" | "file"}:
            return dict(raw)
    return {"type": "text", "text": text_of_part(raw)}


class _ChunkReader(OpenAIReader):
    def __init__(self, provider: str, reasoning_field: str) -> None:
        super().__init__(provider)
        self._reasoning_field = reasoning_field
        self._text: list[str] = []
        self._reasoning: list[str] = []
        self._calls: list[_CallInProgress] = []
        self._refused = False

    def feed(self, event: ServerSentEvent) -> str:
        text = super().feed(event)
        self.done = self.done or self.ended
        return text

    def _add(self, chunk: dict[str, Any]) -> str:
        if chunk.get("object") == "error":
            raise ReportedError(ProviderError.read(chunk))
        if (usage := chunk.get("usage")) is not None:
            self.usage = read_usage(usage)
            self.done = self.stop is not None
        if not chunk.get("choices"):
            return ""
        choice = chunk["choices"][0]
        if choice.get("error"):
            raise ReportedError(ProviderError.read(choice["error"]))
        delta = choice.get("delta") or {}
        self.progress += any(value for name, value in delta.items() if name != "role")
        for piece in delta.get("tool_calls") or ():
            self._add_call(piece)
        if self._reasoning_field and (piece := delta.get(self._reasoning_field)):
            self._reasoning.append(piece)
        if delta.get("refusal"):
            self._refused = True
        text: str = (delta.get("content") or "") + (delta.get("refusal") or "")
        self._text.append(text)
        if (reason := choice.get("finish_reason")) not in (None, ""):
            self.stop = "refusal" if self._refused else FINISHES.get(reason.lower(), "error")
            self.unknown_stop = "" if reason.lower() in FINISHES else reason
            self.progress += 1
        return text

    def blocks(self) -> list[Block]:
        found: list[Block] = []
        if self._reasoning:
            found.append(Thinking(join_surrogates("".join(self._reasoning)), None, self._provider))
        if text := join_surrogates("".join(self._text)):
            found.append(Text(text))
        is_known = bool(self.stop and not self.unknown_stop)
        return found + [call.block(number, is_known) for number, call in enumerate(self._calls, 1)]

    def _add_call(self, piece: dict[str, Any]) -> None:
        # Some servers give every call the index 0, so a new id also starts a new call.
        index, id, function = piece.get("index"), piece.get("id"), piece.get("function") or {}
        known = next((call for call in reversed(self._calls) if call.index == index), None)
        if known is None or (id and known.id and id != known.id):
            self._calls.append(known := _CallInProgress(index))
        known.id = known.id or id or ""
        known.name = known.name or function.get("name") or ""
        arguments = function.get("arguments") or ""
        if isinstance(arguments, str):
            known.arguments.append(arguments)
        else:
            known.arguments = [json.dumps(arguments)]  # An object is complete, so it replaces what came before.


class _CallInProgress:
    def __init__(self, index: Any) -> None:
        self.index = index
        self.id = self.name = ""
        self.arguments: list[str] = []

    def block(self, number: int, is_complete: bool) -> ToolUse:
        """Return the call as a block. `number` is the number of the call in its response.

        If `is_complete` is False, the response may have ended before the arguments of the call.
        """
        text = "".join(self.arguments)
        input = parse_input(text) if text.strip() or is_complete else {INVALID_INPUT: ""}
        return ToolUse(join_surrogates(self.id or f"call_{number}"), join_surrogates(self.name), input)


def read_usage(reported: Any) -> ReportedUsage:
    """Return the token counts in the field `usage` of a response."""
    if not isinstance(reported, dict):
        return ReportedUsage(reported, reported, inclusive=True)
    details = reported.get("prompt_tokens_details")
    details = details if isinstance(details, dict) else {}
    read = details.get("cached_tokens")
    return ReportedUsage(
        input=reported.get("prompt_tokens"),
        output=reported.get("completion_tokens"),
        cache_read=reported.get("cached_tokens") if read in (None, 0) else read,
        cache_write=details.get("cache_write_tokens"),
        inclusive=True,
    )
