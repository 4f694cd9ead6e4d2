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
    Usage,
    text_of,
)

from ..http.remote import Ask, Reading, Remote, parse_input
from ..normalize_messages import Wants, arrange, whole
from .openai import Sdk, arguments, cache_key, data_url, functions, result_text

__all__ = ["Chat", "from_spec"]

IDS: Final = re.compile(r"\S{1,40}")
FINISHES: Final[dict[str, StopReason]] = {
    "stop": "end_turn",
    "length": "max_tokens",
    "tool_calls": "tool_use",
    "function_call": "tool_use",
    "content_filter": "refusal",
}


class Chat(Sdk):
    """The dialect of `POST /chat/completions`."""

    path = "/chat/completions"

    def __init__(self, reasoning_field: str = "") -> None:
        self._reasoning_field = reasoning_field

    def request(self, ask: Ask) -> dict[str, Any]:
        """Return the body of the request."""
        flags = ask.model.flags
        wire: list[dict[str, Any]] = [{"role": "system", "content": ask.system}] if ask.system.strip() else []
        for message in arrange(ask.messages, Wants(ask.provider, IDS, images=flags.images)):
            wire += _wire_messages(message, self._reasoning_field)
        if ask.tail:
            wire.append({"role": "user", "content": ask.tail})
        request = {
            "model": ask.name,
            "messages": wire,
            "tools": [{"type": "function", "function": function} for function in functions(ask)],
            flags.max_tokens_field: ask.most_output,
            "prompt_cache_key": cache_key(ask) if flags.prompt_cache_key else "",
            "stream": True,
            "stream_options": {"include_usage": True},
        }
        kept = {name: value for name, value in request.items() if value}
        return kept | ({"store": False} if flags.never_store else {}) | ask.model.body

    def reading(self, provider: str) -> Reading:
        """Return what reads one response."""
        return _Reading(provider, self._reasoning_field)


def from_spec(spec: BackendSpec, keys: Mapping[str, str]) -> Remote:
    """Return the backend for the model that `spec` names."""
    flags = spec.options.get("flags") or {}
    return Remote(spec, keys, Chat(flags.get("reasoning_field", "")))


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


class _Reading:
    def __init__(self, provider: str, reasoning_field: str) -> None:
        self.usage = Usage()
        self.stop: StopReason | None = None
        self.done = False
        self._provider = provider
        self._reasoning_field = reasoning_field
        self._text: list[str] = []
        self._reasoning: list[str] = []
        self._calls: list[_Call] = []
        self._refused = False

    def feed(self, chunk: Any) -> str:
        if chunk.usage is not None:
            self.usage = _usage(chunk.usage)
            self.done = self.stop is not None
        if not chunk.choices:
            return ""
        choice = chunk.choices[0]
        delta = choice.delta
        for piece in delta.tool_calls or ():
            self._add_call(piece)
        if self._reasoning_field and (piece := (delta.model_extra or {}).get(self._reasoning_field)):
            self._reasoning.append(piece)
        if delta.refusal:
            self._refused = True
        text = (delta.content or "") + (delta.refusal or "")
        self._text.append(text)
        if choice.finish_reason is not None:
            self.stop = "refusal" if self._refused else FINISHES.get(choice.finish_reason, "error")
        return text

    def blocks(self) -> list[Block]:
        """Return what the response consists of."""
        found: list[Block] = []
        if self._reasoning:
            found.append(Thinking(whole("".join(self._reasoning)), None, self._provider))
        if text := whole("".join(self._text)):
            found.append(Text(text))
        return found + [call.block(number) for number, call in enumerate(self._calls, 1)]

    def _add_call(self, piece: Any) -> None:
        # Some servers number every call 0: an id that was not there before begins another call.
        known = next((call for call in reversed(self._calls) if call.index == piece.index), None)
        if known is None or (piece.id and known.id and piece.id != known.id):
            self._calls.append(known := _Call(piece.index))
        known.id = known.id or piece.id or ""
        if piece.function is not None:
            known.name = known.name or piece.function.name or ""
            known.arguments.append(piece.function.arguments or "")


class _Call:
    def __init__(self, index: int) -> None:
        self.index = index
        self.id = self.name = ""
        self.arguments: list[str] = []

    def block(self, number: int) -> ToolUse:
        """Return the call, the `number`th of its response."""
        return ToolUse(self.id or f"call_{number}", self.name, parse_input("".join(self.arguments)))


def _usage(told: Any) -> Usage:
    details = told.prompt_tokens_details
    read = (details.cached_tokens if details else None) or (told.model_extra or {}).get("cached_tokens") or 0
    written = (details.cache_write_tokens if details else None) or 0
    return Usage(max(0, told.prompt_tokens - read - written), told.completion_tokens, read, written)
