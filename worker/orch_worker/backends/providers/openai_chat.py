"""The Chat Completions API: messages in, one choice out, tool results as messages of their own."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from orch_protocol.agent.spec import BackendSpec
from orch_protocol.core.messages import (
    Block,
    Image,
    Message,
    StopReason,
    Text,
    Thinking,
    ToolResult,
    ToolUse,
    text_of,
)

from ..http.remote import ModelRequest, RemoteBackend, ResponseReader, parse_input
from ..http.reported_usage import ReportedUsage
from ..normalize_messages import arrange, whole
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
    """The dialect of `POST /chat/completions`."""

    path = "/chat/completions"

    def __init__(self, reasoning_field: str = "") -> None:
        self._reasoning_field = reasoning_field

    def request(self, ask: ModelRequest) -> dict[str, Any]:
        """Return the body of the request."""
        flags = ask.model.flags
        wire: list[dict[str, Any]] = [{"role": "system", "content": ask.system}] if ask.system.strip() else []
        for message in arrange(ask.messages, provider_requirements(ask, IDS)):
            wire += _wire_messages(message, self._reasoning_field)
        if ask.tail:
            wire.append({"role": "user", "content": ask.tail})
        request = {
            "model": ask.name,
            "messages": wire,
            "tools": [{"type": "function", "function": function} for function in functions(ask)],
            flags.max_tokens_field: ask.most_output,
            "stream": True,
            "stream_options": {"include_usage": True},
        }
        kept = {name: value for name, value in request.items() if value}
        return kept | own_fields(ask, store=flags.never_store) | ask.model.body

    def reading(self, provider: str) -> ResponseReader:
        """Return what reads one response."""
        return _ChunkReader(provider, self._reasoning_field)


def from_spec(spec: BackendSpec, keys: Mapping[str, str]) -> RemoteBackend:
    """Return the backend for the model that `spec` names."""
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
                parts += _parts([part for part in block.content if isinstance(part, Image)])
            else:
                parts += _parts([block])
        if parts:
            plain = all(part["type"] == "text" for part in parts)
            yield {"role": "user", "content": "\n\n".join(part["text"] for part in parts) if plain else parts}


def _assistant(message: Message, reasoning_field: str) -> dict[str, Any]:
    made: dict[str, Any] = {"role": "assistant", "content": text_of(message) or None}
    calls = [
        {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": arguments(call)}}
        for call in message.content
        if isinstance(call, ToolUse)
    ]
    if calls:
        made["tool_calls"] = calls
    elif made["content"] is None:
        made["content"] = ""
    reasoning = "".join(block.thinking for block in message.content if isinstance(block, Thinking))
    return made | ({reasoning_field: reasoning} if reasoning_field and reasoning else {})


def _parts(blocks: Sequence[Block]) -> Iterator[dict[str, Any]]:
    for block in blocks:
        if isinstance(block, Text):
            yield {"type": "text", "text": block.text}
        elif isinstance(block, Image):
            yield {"type": "image_url", "image_url": {"url": data_url(block)}}


class _ChunkReader:
    """Reads chunks as plain JSON data: the SDK's types would turn a wrong value into a plausible one."""

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
        if (told := chunk.get("usage")) is not None:
            self.usage = _usage(told)
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
        """Return what the response consists of."""
        found: list[Block] = []
        if self._reasoning:
            found.append(Thinking(whole("".join(self._reasoning)), None, self._provider))
        if text := whole("".join(self._text)):
            found.append(Text(text))
        return found + [call.block(number) for number, call in enumerate(self._calls, 1)]

    def _add_call(self, piece: dict[str, Any]) -> None:
        # Some servers number every call 0: an id that was not there before begins another call.
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
        """Return the call, the `number`th of its response."""
        return ToolUse(self.id or f"call_{number}", self.name, parse_input("".join(self.arguments)))


def _usage(told: Any) -> ReportedUsage:
    if not isinstance(told, dict):
        return ReportedUsage(told, told, inclusive=True)
    details = told.get("prompt_tokens_details")
    details = details if isinstance(details, dict) else {}
    read = details.get("cached_tokens")
    return ReportedUsage(
        input=told.get("prompt_tokens"),
        output=told.get("completion_tokens"),
        cache_read=told.get("cached_tokens") if read in (None, 0) else read,
        cache_write=details.get("cache_write_tokens"),
        inclusive=True,
    )
