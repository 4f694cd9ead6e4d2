"""The format of the Responses API.

Input and output consist of items. Messages have a role; calls, their outputs and reasoning have a type. The provider
stores nothing.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Any, Final

from orch_protocol.core.errors import ConfigError
from orch_protocol.core.messages import Block, Image, Message, Opaque, StopReason, Text, ToolResult, ToolUse
from orch_protocol.core.text import scrub

from . import chat
from .format import ModelRequest, ResponseReader, text_in
from .normalize_messages import join_surrogates, normalize_messages, parse_input, text_of_part
from .openai import (
    OpenAIReader,
    arguments,
    compact_json,
    data_url,
    decode_result,
    own_fields,
    parse_arguments,
    provider_requirements,
    result_text,
)
from .provider_error import ProviderError, ReportedError
from .reported_usage import ReportedUsage

__all__ = ["ResponsesFormat", "decode_item", "encode_item", "encode_tool", "read_usage"]

IDS: Final = re.compile(r"[a-zA-Z0-9_-]{1,64}")
INCOMPLETE: Final[dict[str, StopReason]] = {"max_output_tokens": "max_tokens", "content_filter": "refusal"}


class ResponsesFormat:
    """Requests and responses of the API."""

    def request(self, request: ModelRequest) -> dict[str, Any]:
        """Return the body of the request."""
        flags = request.model.flags
        wire: list[dict[str, Any]] = []
        for message in normalize_messages(request.messages, provider_requirements(request, IDS)):
            wire += _items(message)
        if request.tail:
            wire.append({"type": "message", "role": "user", "content": list(_input_parts([Text(request.tail)]))})
        fields = {
            "model": request.name,
            "instructions": request.system if request.system.strip() else "",
            "input": wire,
            "tools": [encode_tool(tool.name, tool.description, tool.input_schema) for tool in request.tools],
            "max_output_tokens": request.max_output_tokens,
            "include": ["reasoning.encrypted_content"] if flags.reasoning else [],
            "stream": True,
        }
        kept = {name: value for name, value in fields.items() if value}
        return kept | own_fields(request, store=True) | request.model.body

    def new_reader(self, provider: str) -> ResponseReader:
        """Return a reader for one response."""
        return _ResponsesReader(provider)


def decode_item(raw: Any, provider: str) -> Message:
    """Return `raw`, an item as JSON data, as a message. Raise ConfigError if it is not valid.

    Items and parts of other types belong to `provider`.
    """
    match raw:
        case {"role": _}:
            return chat.decode_message(raw, provider)
        case {"type": "function_call"}:
            given = parse_arguments(raw.get("arguments"))
            return Message("assistant", (ToolUse(text_in(raw, "call_id"), text_in(raw, "name"), given),))
        case {"type": "custom_tool_call", "input": str(given)}:
            return Message("assistant", (ToolUse(text_in(raw, "call_id"), text_in(raw, "name"), {"input": given}),))
        case {"type": "function_call_output" | "custom_tool_call_output"}:
            return decode_result(text_in(raw, "call_id"), raw.get("output"))
        case {"type": str()}:
            return Message("assistant", (Opaque(provider, raw),))
    raise ConfigError(f"an item must have a role or a type; got {raw!r:.80}")


def encode_item(message: Message) -> dict[str, Any]:
    """Return `message` as an item. A message with a call, the result of a call or an item must contain nothing else."""
    match message.content:
        case [ToolUse() as call]:
            return _call(call, compact_json(call.input))
        case [ToolResult(id, content, _)]:
            return _result(id, "\n".join(part.text for part in content if isinstance(part, Text)))
        case [Opaque(_, {"type": str()} as raw)] if message.role == "assistant":
            return dict(raw)
        case [Text(text)]:
            return {"role": message.role, "content": text}
    kind = "output_text" if message.role == "assistant" else "input_text"
    return {"role": message.role, "content": [_encode_block(block, kind) for block in message.content]}


def encode_tool(name: str, description: str, schema: dict[str, Any]) -> dict[str, Any]:
    """Return the definition of a tool. Without `strict`, the API treats every parameter as required."""
    return {"type": "function", "strict": False, "name": name, "description": description, "parameters": schema}


def _encode_block(block: Block, kind: str) -> dict[str, Any]:
    match block:
        case Image():
            return _image(block)
        case Opaque(_, dict(raw)):
            return raw
    return {"type": kind, "text": block.text if isinstance(block, Text) else ""}


def _image(image: Image) -> dict[str, Any]:
    return {"type": "input_image", "image_url": data_url(image)}


def _call(call: ToolUse, arguments: str) -> dict[str, Any]:
    return {"type": "function_call", "call_id": call.id, "name": call.name, "arguments": arguments}


def _result(id: str, output: str | list[dict[str, Any]]) -> dict[str, Any]:
    return {"type": "function_call_output", "call_id": id, "output": output}


def _items(message: Message) -> Iterator[dict[str, Any]]:
    if message.role == "assistant":
        yield from _output_items(message.content)
        return
    parts: list[dict[str, Any]] = []
    for block in message.content:
        if isinstance(block, ToolResult):
            yield _result(block.tool_use_id, _output(block))
        else:
            parts += _input_parts([block])
    if parts:
        yield {"type": "message", "role": message.role, "content": parts}


def _output_items(blocks: Sequence[Block]) -> Iterator[dict[str, Any]]:
    pending: list[dict[str, Any]] = []
    phase: dict[str, Any] = {}
    for block in blocks:
        if isinstance(block, Opaque):
            if block.raw.get("type") == "message":
                phase = {"phase": block.raw["phase"]}
            else:
                pending.append(block.raw)
            continue
        # The API rejects reasoning without the item that follows the reasoning, for example after a truncated response.
        yield from pending
        pending = []
        if isinstance(block, ToolUse):
            yield _call(block, arguments(block))
        elif isinstance(block, Text):
            content = [{"type": "output_text", "text": block.text}]
            yield {"type": "message", "role": "assistant", "content": content, **phase}
            phase = {}


def _output(result: ToolResult) -> str | list[dict[str, Any]]:
    if not any(isinstance(part, Image) for part in result.content):
        return result_text(result)
    return list(_input_parts(result.content))


def _input_parts(blocks: Sequence[Block]) -> Iterator[dict[str, Any]]:
    for block in blocks:
        if isinstance(block, Text):
            yield {"type": "input_text", "text": block.text}
        elif isinstance(block, Image):
            yield _image(block) | {"detail": "auto"}
        elif isinstance(block, Opaque):
            yield _own_part(block.raw)


def _own_part(raw: Any) -> dict[str, Any]:
    """Return a part of a user message. A part of Chat Completions is converted, or replaced by a text."""
    match raw:
        case {"type": "image_url", "image_url": dict(image)}:
            return {"type": "input_image", "image_url": image.get("url"), "detail": image.get("detail", "auto")}
        case {"type": "file", "file": dict(file)}:
            return {"type": "input_file", **file}
        case {"type": "input_text" | "input_image" | "input_file"}:
            return dict(raw)
    return {"type": "input_text", "text": text_of_part(raw)}


class _ResponsesReader(OpenAIReader):
    def __init__(self, provider: str) -> None:
        super().__init__(provider)
        self._items: dict[int, dict[str, Any]] = {}

    def _add(self, event: dict[str, Any]) -> str:
        kind = str(event.get("type"))
        match kind:
            case "response.output_item.added":
                self.progress += 1
            case "response.output_item.done":
                self._items[event["output_index"]] = event["item"]
                self.progress += 1
            case "response.completed" | "response.incomplete":
                self._end(event["response"])
                self.progress += 1
            case "response.failed":
                self.usage = read_usage(event["response"].get("usage"))
                raise ReportedError(_complaint(event["response"].get("error") or {"message": "it failed"}))
            case "error":
                raise ReportedError(_complaint(event))
        if not kind.endswith(".delta"):
            return ""
        delta = event["delta"]
        self.progress += bool(delta)
        return str(delta) if kind in ("response.output_text.delta", "response.refusal.delta") else ""

    def blocks(self) -> list[Block]:
        return [block for _, item in sorted(self._items.items()) for block in self._blocks(item)]

    def _blocks(self, item: dict[str, Any]) -> Iterator[Block]:
        if item["type"] == "function_call":
            id, name = join_surrogates(item["call_id"]), join_surrogates(item["name"])
            yield ToolUse(id, name, parse_input(item["arguments"]))
        elif item["type"] == "message":
            text = "".join(part.get("text") or part.get("refusal") or "" for part in item["content"])
            if not text:
                return
            if item.get("phase"):
                # The phase of a text matters only to the provider. Each request must contain the phase unchanged.
                yield Opaque(self._provider, {"type": "message", "phase": item["phase"]})
            yield Text(join_surrogates(text))
        else:
            yield Opaque(self._provider, scrub(item))

    def _end(self, response: dict[str, Any]) -> None:
        self.usage = read_usage(response.get("usage"))
        self.done = True
        if response.get("status") == "incomplete":
            reason = (response.get("incomplete_details") or {}).get("reason") or "max_output_tokens"
            self.stop = INCOMPLETE.get(reason, "error")
            self.unknown_stop = "" if reason in INCOMPLETE else reason
        elif any(part.get("type") == "refusal" for item in self._items.values() for part in item.get("content") or ()):
            self.stop = "refusal"
        else:
            self.stop = "end_turn"


def read_usage(reported: Any) -> ReportedUsage:
    """Return the token counts in the field `usage` of a response."""
    if not isinstance(reported, dict):
        return ReportedUsage(reported, reported, inclusive=True)
    details = reported.get("input_tokens_details")
    details = details if isinstance(details, dict) else {}
    return ReportedUsage(
        input=reported.get("input_tokens"),
        output=reported.get("output_tokens"),
        cache_read=details.get("cached_tokens"),
        cache_write=details.get("cache_write_tokens"),
        inclusive=True,
    )


def _complaint(error: dict[str, Any]) -> ProviderError:
    return ProviderError.read({name: value for name, value in error.items() if name != "type" or value != "error"})
