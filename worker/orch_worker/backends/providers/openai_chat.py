"""The Chat Completions API, in which tool results are separate messages."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from orch_protocol.agent.spec import BackendSpec
from orch_protocol.core.messages import (
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
)

from ..http.remote import ModelRequest, RemoteBackend, ResponseReader
from ..http.reported_usage import ReportedUsage
from ..normalize_messages import join_surrogates, normalize_messages, parse_input, text_of_part
from .openai import OpenAIApi, arguments, data_url, functions, own_fields, provider_requirements, result_text

__all__ = ["ChatCompletionsApi", "from_spec"]

IDS: Final = re.compile(r"\S{1,40}")
FINISHES: Final[dict[str, StopReason]] = {
    "stop": "end_turn",
    "length": "max_tokens",
    "tool_calls": "tool_use",
    "function_call": "tool_use",
    "content_filter": "refusal",
}


class ChatCompletionsApi(OpenAIApi):
    """The API `POST /chat/completions`."""

    path = "/chat/completions"

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
            "tools": [{"type": "function", "function": function} for function in functions(request)],
            flags.max_tokens_field: request.max_output_tokens,
            "stream": True,
            "stream_options": {"include_usage": True},
        }
        kept = {name: value for name, value in fields.items() if value}
        return kept | own_fields(request, store=flags.never_store) | request.model.body

    def new_reader(self, provider: str) -> ResponseReader:
        """Return a reader for one response."""
        return _ChunkReader(provider, self._reasoning_field)


def from_spec(spec: BackendSpec, keys: Mapping[str, str]) -> RemoteBackend:
    """Return the backend for the model in `spec`."""
    flags = spec.options.get("flags") or {}
    return RemoteBackend(spec, keys, ChatCompletionsApi(flags.get("reasoning_field", "")))


def _wire_messages(message: Message, reasoning_field: str) -> Iterator[dict[str, Any]]:
    if message.role == "system":
        yield {"role": "system", "content": text_of(message)}
    elif message.role == "assistant":
        yield _assistant(message, reasoning_field)
    else:
        parts: list[dict[str, Any]] = []
        for block in message.content:
            if isinstance(block, ToolResult):
                yield {"role": "tool", "tool_call_id": block.tool_use_id, "content": result_text(block)}
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
    calls = [
        {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": arguments(call)}}
        for call in message.content
        if isinstance(call, ToolUse)
    ]
    if calls:
        wire_message["tool_calls"] = calls
    elif wire_message["content"] is None:
        wire_message["content"] = ""
    reasoning = "".join(block.thinking for block in message.content if isinstance(block, Thinking))
    return wire_message | ({reasoning_field: reasoning} if reasoning_field and reasoning else {})


def _parts(blocks: Sequence[Block]) -> Iterator[dict[str, Any]]:
    for block in blocks:
        if isinstance(block, Text):
            yield {"type": "text", "text": block.text}
        elif isinstance(block, Image):
            yield {"type": "image_url", "image_url": {"url": data_url(block)}}
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


class _ChunkReader:
    """Reads chunks as plain JSON data, because the SDK's types would convert wrong values to plausible values."""

    def __init__(self, provider: str, reasoning_field: str) -> None:
        self.usage = ReportedUsage(inclusive=True)
        self.stop: StopReason | None = None
        self.done = False
        self.progress = 0
        self._provider = provider
        self._reasoning_field = reasoning_field
        self._text: list[str] = []
        self._reasoning: list[str] = []
        self._calls: list[_CallInProgress] = []
        self._refused = False

    def feed(self, chunk: dict[str, Any]) -> str:
        if (usage := chunk.get("usage")) is not None:
            self.usage = _usage(usage)
            self.done = self.stop is not None
        if not chunk.get("choices"):
            return ""
        choice = chunk["choices"][0]
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
        if (reason := choice.get("finish_reason")) is not None:
            self.stop = "refusal" if self._refused else FINISHES.get(reason, "error")
            self.progress += 1
        return text

    def blocks(self) -> list[Block]:
        """Return the blocks of the response."""
        found: list[Block] = []
        if self._reasoning:
            found.append(Thinking(join_surrogates("".join(self._reasoning)), None, self._provider))
        if text := join_surrogates("".join(self._text)):
            found.append(Text(text))
        return found + [call.block(number) for number, call in enumerate(self._calls, 1)]

    def _add_call(self, piece: dict[str, Any]) -> None:
        # Some servers give every call the index 0, so a new id also starts a new call.
        index, id, function = piece.get("index"), piece.get("id"), piece.get("function") or {}
        known = next((call for call in reversed(self._calls) if call.index == index), None)
        if known is None or (id and known.id and id != known.id):
            self._calls.append(known := _CallInProgress(index))
        known.id = known.id or id or ""
        known.name = known.name or function.get("name") or ""
        known.arguments.append(function.get("arguments") or "")


class _CallInProgress:
    def __init__(self, index: Any) -> None:
        self.index = index
        self.id = self.name = ""
        self.arguments: list[str] = []

    def block(self, number: int) -> ToolUse:
        """Return the call as a block. `number` is the number of the call in its response."""
        return ToolUse(self.id or f"call_{number}", self.name, parse_input("".join(self.arguments)))


def _usage(reported: Any) -> ReportedUsage:
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
