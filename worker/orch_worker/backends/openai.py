"""Chat Completions and Responses, by OpenAI's SDK: for OpenAI, and for everybody who speaks like it.

Stateless either way: nothing is stored at the provider, and the whole conversation is in every request, encrypted
reasoning included.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

import msgspec
import openai

from orch_protocol.messages import (
    Block,
    Image,
    Message,
    Opaque,
    StopReason,
    Text,
    Thinking,
    ToolResult,
    ToolUse,
    Usage,
    text_of,
)
from orch_protocol.spec import BackendSpec
from orch_protocol.text import scrub

from .arrange import Wants, arrange, whole
from .failures import Complaint
from .remote import Ask, Complained, Reading, Remote, Stream, parse_input, sendable
from .transport import Deadlines, ssl_context, timeout

__all__ = ["Chat", "Responses", "from_spec"]

CHAT_IDS: Final = re.compile(r"\S{1,40}")
RESPONSES_IDS: Final = re.compile(r"[a-zA-Z0-9_-]{1,64}")
FINISHES: Final[dict[str, StopReason]] = {
    "stop": "end_turn",
    "length": "max_tokens",
    "tool_calls": "tool_use",
    "function_call": "tool_use",
    "content_filter": "refusal",
}
INCOMPLETE: Final[dict[str, StopReason]] = {"max_output_tokens": "max_tokens", "content_filter": "refusal"}
FAILED: Final = "Error: "


class _Sdk:
    """What both dialects share."""

    def client(self, key: str, base_url: str, headers: Mapping[str, str], deadlines: Deadlines) -> Any:
        """Return a client that never tries anything twice."""
        return openai.AsyncOpenAI(
            api_key=key,
            base_url=base_url,
            default_headers=headers,
            max_retries=0,
            timeout=timeout(deadlines),
            http_client=openai.DefaultAsyncHttpxClient(verify=ssl_context()),
        )

    def complaint(self, error: Exception) -> Complaint | None:
        """Return what the API said; within a stream it comes without a status."""
        if not isinstance(error, openai.APIError) or isinstance(error, openai.APIConnectionError):
            return None
        body = error.body if isinstance(error.body, dict) else {}
        text = str(body.get("message") or error.message)
        kinds = tuple(filter(None, (error.type, error.code)))
        if isinstance(error, openai.APIStatusError):
            return Complaint(text, error.status_code, kinds, error.response.headers)
        return Complaint(text, 0, kinds)


class Chat(_Sdk):
    """The dialect of `POST /chat/completions`."""

    def __init__(self, reasoning_field: str = "") -> None:
        self._reasoning_field = reasoning_field

    def request(self, ask: Ask) -> dict[str, Any]:
        """Return the body of the request."""
        flags = ask.model.flags
        wire: list[dict[str, Any]] = [{"role": "system", "content": ask.system}] if ask.system.strip() else []
        for message in arrange(ask.messages, Wants(ask.provider, CHAT_IDS, images=flags.images)):
            wire += _chat_messages(message, self._reasoning_field)
        if ask.tail:
            wire.append({"role": "user", "content": ask.tail})
        request = {
            "model": ask.name,
            "messages": wire,
            "tools": [{"type": "function", "function": function} for function in _functions(ask)],
            flags.max_tokens_field: ask.most_output,
            "prompt_cache_key": _cache_key(ask) if flags.prompt_cache_key else "",
            "stream_options": {"include_usage": True},
        }
        kept = {name: value for name, value in request.items() if value}
        return sendable(kept | ({"store": False} if flags.never_store else {}) | ask.model.body)

    async def open(self, client: Any, request: dict[str, Any]) -> Stream:
        """Send the request and return the stream of its response."""
        # As the extra body, for the SDK would walk through its own arguments, type by type, in every request.
        stream: Stream = await client.chat.completions.create(
            model=request["model"], messages=(), stream=True, extra_body=request
        )
        return stream

    def reading(self, provider: str) -> Reading:
        """Return what reads one response."""
        return _ChatReading(provider, self._reasoning_field)


class Responses(_Sdk):
    """The dialect of `POST /responses`."""

    def request(self, ask: Ask) -> dict[str, Any]:
        """Return the body of the request."""
        flags = ask.model.flags
        wire: list[dict[str, Any]] = []
        for message in arrange(ask.messages, Wants(ask.provider, RESPONSES_IDS, images=flags.images)):
            wire += _items(message)
        if ask.tail:
            wire.append({"type": "message", "role": "user", "content": list(_input_parts([Text(ask.tail)]))})
        request = {
            "model": ask.name,
            "instructions": ask.system if ask.system.strip() else "",
            "input": wire,
            "tools": [{"type": "function", "strict": False, **function} for function in _functions(ask)],
            "max_output_tokens": ask.most_output,
            "include": ["reasoning.encrypted_content"] if flags.reasoning else [],
            "prompt_cache_key": _cache_key(ask) if flags.prompt_cache_key else "",
        }
        kept = {name: value for name, value in request.items() if value}
        return sendable(kept | {"store": False} | ask.model.body)

    async def open(self, client: Any, request: dict[str, Any]) -> Stream:
        """Send the request and return the stream of its response."""
        stream: Stream = await client.responses.create(model=request["model"], stream=True, extra_body=request)
        return stream

    def reading(self, provider: str) -> Reading:
        """Return what reads one response."""
        return _ResponsesReading(provider)


def from_spec(spec: BackendSpec, keys: Mapping[str, str]) -> Remote:
    """Return the backend for the model that `spec` names, in the dialect that its options name."""
    if spec.options.get("api") == "responses":
        return Remote(spec, keys, Responses())
    flags = spec.options.get("flags") or {}
    return Remote(spec, keys, Chat(flags.get("reasoning_field", "")))


def _functions(ask: Ask) -> list[dict[str, Any]]:
    return [{"name": tool.name, "description": tool.description, "parameters": tool.input_schema} for tool in ask.tools]


def _cache_key(ask: Ask) -> str:
    """Return a name for the prefix that agents of a kind share, so that their requests go to where it is cached."""
    prefix = msgspec.json.encode((scrub(ask.system), scrub(msgspec.to_builtins(ask.tools))))
    return hashlib.sha256(prefix).hexdigest()[:32]


def _data_url(image: Image) -> str:
    return f"data:{image.media_type};base64,{image.data}"


def _arguments(call: ToolUse) -> str:
    return msgspec.json.encode(scrub(call.input)).decode()


def _result_text(result: ToolResult) -> str:
    """Return the text of a result; there is no other place to say that it is an error."""
    text = text_of(Message("user", result.content))
    return f"{FAILED}{text}" if result.is_error and not text.startswith(FAILED) else text


# Chat Completions.


def _chat_messages(message: Message, reasoning_field: str) -> Iterator[dict[str, Any]]:
    if message.role == "system":
        yield {"role": "system", "content": text_of(message)}
    elif message.role == "assistant":
        yield _chat_assistant(message, reasoning_field)
    else:
        parts: list[dict[str, Any]] = []
        for block in message.content:
            if isinstance(block, ToolResult):
                yield {"role": "tool", "tool_call_id": block.tool_use_id, "content": _result_text(block)}
                parts += _chat_parts([part for part in block.content if isinstance(part, Image)])
            else:
                parts += _chat_parts([block])
        if parts:
            plain = all(part["type"] == "text" for part in parts)
            yield {"role": "user", "content": "\n\n".join(part["text"] for part in parts) if plain else parts}


def _chat_assistant(message: Message, reasoning_field: str) -> dict[str, Any]:
    made: dict[str, Any] = {"role": "assistant", "content": text_of(message) or None}
    calls = [
        {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": _arguments(call)}}
        for call in message.content
        if isinstance(call, ToolUse)
    ]
    if calls:
        made["tool_calls"] = calls
    elif made["content"] is None:
        made["content"] = ""
    reasoning = "".join(block.thinking for block in message.content if isinstance(block, Thinking))
    return made | ({reasoning_field: reasoning} if reasoning_field and reasoning else {})


def _chat_parts(blocks: Sequence[Block]) -> Iterator[dict[str, Any]]:
    for block in blocks:
        if isinstance(block, Text):
            yield {"type": "text", "text": block.text}
        elif isinstance(block, Image):
            yield {"type": "image_url", "image_url": {"url": _data_url(block)}}


class _ChatReading:
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
            self.usage = _chat_usage(chunk.usage)
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


def _chat_usage(told: Any) -> Usage:
    details = told.prompt_tokens_details
    read = (details.cached_tokens if details else None) or (told.model_extra or {}).get("cached_tokens") or 0
    written = (details.cache_write_tokens if details else None) or 0
    return Usage(max(0, told.prompt_tokens - read - written), told.completion_tokens, read, written)


# Responses.


def _items(message: Message) -> Iterator[dict[str, Any]]:
    if message.role == "assistant":
        yield from _output_items(message.content)
        return
    parts: list[dict[str, Any]] = []
    for block in message.content:
        if isinstance(block, ToolResult):
            yield {"type": "function_call_output", "call_id": block.tool_use_id, "output": _output(block)}
        else:
            parts += _input_parts([block])
    if parts:
        yield {"type": "message", "role": message.role, "content": parts}


def _output_items(blocks: Sequence[Block]) -> Iterator[dict[str, Any]]:
    held: list[dict[str, Any]] = []
    phase: dict[str, Any] = {}
    for block in blocks:
        if isinstance(block, Opaque):
            if block.raw.get("type") == "message":
                phase = {"phase": block.raw["phase"]}
            else:
                held.append(block.raw)
            continue
        # Reasoning is refused without the item that it led to, as in a response that was cut off.
        yield from held
        held = []
        if isinstance(block, ToolUse):
            yield {"type": "function_call", "call_id": block.id, "name": block.name, "arguments": _arguments(block)}
        elif isinstance(block, Text):
            content = [{"type": "output_text", "text": block.text}]
            yield {"type": "message", "role": "assistant", "content": content, **phase}
            phase = {}


def _output(result: ToolResult) -> str | list[dict[str, Any]]:
    if not any(isinstance(part, Image) for part in result.content):
        return _result_text(result)
    return list(_input_parts(result.content))


def _input_parts(blocks: Sequence[Block]) -> Iterator[dict[str, Any]]:
    for block in blocks:
        if isinstance(block, Text):
            yield {"type": "input_text", "text": block.text}
        elif isinstance(block, Image):
            yield {"type": "input_image", "image_url": _data_url(block), "detail": "auto"}


class _ResponsesReading:
    def __init__(self, provider: str) -> None:
        self.usage = Usage()
        self.stop: StopReason | None = None
        self.done = False
        self._provider = provider
        self._items: dict[int, dict[str, Any]] = {}
        self._refused = False

    def feed(self, event: Any) -> str:
        match event.type:
            case "response.output_text.delta" | "response.refusal.delta":
                return str(event.delta)
            case "response.output_item.done":
                self._items[event.output_index] = event.item.to_dict(mode="json")
            case "response.completed" | "response.incomplete":
                self._end(event.response)
            case "response.failed":
                self._count(event.response.usage)
                error = event.response.error
                raise Complained(Complaint(error.message, 0, (error.code,)) if error else Complaint("it failed"))
            case "error":
                raise Complained(Complaint(event.message or "error", 0, (event.code,) if event.code else ()))
        return ""

    def blocks(self) -> list[Block]:
        """Return what the response consists of, in order."""
        return [block for _, item in sorted(self._items.items()) for block in self._blocks(item)]

    def _blocks(self, item: dict[str, Any]) -> Iterator[Block]:
        if item["type"] == "function_call":
            yield ToolUse(item["call_id"], item["name"], parse_input(item["arguments"]))
        elif item["type"] == "message":
            text = "".join(part.get("text") or part.get("refusal") or "" for part in item["content"])
            if not text:
                return
            if item.get("phase"):
                # Which part of the work a text belongs to is for the provider alone, and must come back to it.
                yield Opaque(self._provider, {"type": "message", "phase": item["phase"]})
            yield Text(whole(text))
        else:
            yield Opaque(self._provider, scrub(item))

    def _end(self, response: Any) -> None:
        self._count(response.usage)
        self.done = True
        if response.status == "incomplete":
            reason = response.incomplete_details.reason if response.incomplete_details else "max_output_tokens"
            self.stop = INCOMPLETE.get(reason, "error")
        elif any(part.get("type") == "refusal" for item in self._items.values() for part in item.get("content") or ()):
            self.stop = "refusal"
        else:
            self.stop = "end_turn"

    def _count(self, told: Any) -> None:
        if told is not None:
            details = told.input_tokens_details
            read = getattr(details, "cached_tokens", 0) or 0
            written = getattr(details, "cache_write_tokens", 0) or 0
            self.usage = Usage(max(0, told.input_tokens - read - written), told.output_tokens, read, written)
