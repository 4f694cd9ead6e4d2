"""The Anthropic Messages API: streaming, cache markers, and thinking blocks that are returned unchanged."""

from __future__ import annotations

import re
from collections.abc import Mapping
from itertools import islice
from typing import Any, Final

import anthropic

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
from orch_protocol.core.text import scrub

from ..base import DEFAULT_ANSWER_TOKENS
from ..http.failures import ProviderError
from ..http.remote import ModelRequest, RemoteBackend, ResponseReader, ResponseStream
from ..http.reported_usage import ReportedUsage
from ..http.transport import Deadlines, client_options, timeout
from ..normalize_messages import ProviderRequirements, join_surrogates, normalize_messages, parse_input

__all__ = ["MessagesApi", "from_spec"]

IDS: Final = re.compile(r"[a-zA-Z0-9_-]{1,64}")
STOPS: Final[dict[str, StopReason]] = {
    "end_turn": "end_turn",
    "tool_use": "tool_use",
    "stop_sequence": "stop_sequence",
    "refusal": "refusal",
    "max_tokens": "max_tokens",
    "model_context_window_exceeded": "max_tokens",  # The context window, not the token limit, cut off the response.
}
DELTA_FIELDS: Final = {"text_delta": "text", "input_json_delta": "partial_json", "thinking_delta": "thinking"}
USAGE_FIELDS: Final = {
    "input": "input_tokens",
    "output": "output_tokens",
    "cache_read": "cache_read_input_tokens",
    "cache_write": "cache_creation_input_tokens",
}
MARKER: Final = {"type": "ephemeral"}
CAN_BE_MARKED: Final = frozenset({"text", "image", "tool_use", "tool_result"})


class MessagesApi:
    """The API `POST /v1/messages`."""

    path = "/v1/messages"

    def request(self, request: ModelRequest) -> dict[str, Any]:
        """Return the body of the request."""
        flags = request.model.flags
        requirements = ProviderRequirements(request.provider, IDS, images=flags.images, system=flags.system_messages)
        messages = normalize_messages(request.messages, requirements)
        stable, rest = _stable(request)
        system = [text for text in (stable, rest) if text.strip()]
        while messages and messages[0].role == "system":
            system.append(text_of(messages.pop(0)))
        parts: list[dict[str, Any]] = [{"type": "text", "text": text} for text in system]
        tools: list[dict[str, Any]] = [
            {"name": tool.name, "description": tool.description, "input_schema": tool.input_schema}
            for tool in request.tools
        ]
        wire = [{"role": message.role, "content": _content(message)} for message in messages]
        if flags.cache_markers:
            _mark(parts[:1] if stable.strip() and rest else parts or tools)
            _mark_messages(wire, request.prefix.context)
        if request.tail:
            _end_with(wire, {"type": "text", "text": request.tail})
        fields = {
            "model": request.name,
            "max_tokens": request.max_output_tokens or DEFAULT_ANSWER_TOKENS,
            "messages": wire,
            "system": parts,
            "tools": tools,
            "stream": True,
        }
        kept = {name: value for name, value in fields.items() if value}
        return kept | request.model.body

    def client(self, key: str, base_url: str, headers: Mapping[str, str], deadlines: Deadlines) -> Any:
        """Return a client without retries."""
        client = anthropic.AsyncAnthropic(
            api_key=key,
            base_url=base_url,
            default_headers=headers,
            max_retries=0,
            timeout=timeout(deadlines),
            http_client=anthropic.DefaultAsyncHttpxClient(**client_options(base_url)),
        )
        # Ignore header variables of the environment, because they may be for another server.
        client._custom_headers = headers
        return client

    async def open(self, client: Any, body: bytes) -> ResponseStream:
        """Send the request and return the stream of its response."""
        stream: ResponseStream = await client.post(
            self.path,
            content=body,
            cast_to=object,
            stream=True,
            stream_cls=anthropic.AsyncStream[object],
        )
        return stream

    def new_reader(self, provider: str) -> ResponseReader:
        """Return a reader for one response."""
        return _MessagesReader(provider)

    def provider_error(self, error: Exception) -> ProviderError | None:
        """Return the error that the API reported, or None for other errors.

        An error within a stream has status 200.
        """
        if not isinstance(error, anthropic.APIStatusError):
            return None
        kinds = tuple(map(str, filter(None, (error.type, error.error_code))))
        return ProviderError(str(error.api_message or error.message), error.status_code, kinds, error.response.headers)


def from_spec(spec: BackendSpec, keys: Mapping[str, str]) -> RemoteBackend:
    """Return the backend for the model in `spec`."""
    return RemoteBackend(spec, keys, MessagesApi())


def _content(message: Message) -> list[dict[str, Any]]:
    return [part for block in message.content if (part := _part(block)) is not None]


def _part(block: Block) -> dict[str, Any] | None:
    match block:
        case Text(text):
            return {"type": "text", "text": text}
        case Thinking(thinking, signature):
            # Thinking without a signature comes from a truncated response. The API rejects such thinking.
            return {"type": "thinking", "thinking": thinking, "signature": signature} if signature else None
        case Image(media_type, data):
            return {"type": "image", "source": {"type": "base64", "media_type": media_type, "data": data}}
        case ToolUse(id, name, input):
            return {"type": "tool_use", "id": id, "name": name, "input": input}
        case ToolResult(id, content, is_error):
            result = {"type": "tool_result", "tool_use_id": id, "content": [_part(part) for part in content]}
            return result | ({"is_error": True} if is_error else {})
        case Opaque(raw=raw):
            return dict(raw)


def _mark(parts: list[dict[str, Any]]) -> None:
    """Set a cache marker on the last item of `parts` that can carry a marker."""
    for part in reversed(parts):
        if part.get("type", "text") in CAN_BE_MARKED:
            part["cache_control"] = MARKER
            return


def _stable(request: ModelRequest) -> tuple[str, str]:
    """Return the unchanging beginning of the system text, and the rest of this text.

    If the prefix is unknown, the whole text counts as unchanging.
    """
    stable = request.prefix.system
    if not stable or not request.system.startswith(stable):
        return request.system, ""
    return stable, request.system[len(stable) :].lstrip("\n")


def _mark_messages(wire: list[dict[str, Any]], context: str) -> None:
    """Set cache markers at the end of this request, at the end of the previous request, and after the shared `context`.

    The provider finds a cached prefix only within about twenty blocks before a marker, and a step with many calls adds
    more blocks. The `context` message is the same for all agents in a folder.
    """
    users = [message["content"] for message in wire if message["role"] == "user"]
    if context:
        context_parts = (part for content in users for part in content if part.get("text") == context)
        _mark(list(islice(context_parts, 1)))
    for content in users[-2:]:
        _mark(content)


def _end_with(wire: list[dict[str, Any]], part: dict[str, Any]) -> None:
    """Add `part` at the end of the last user message, after cache markers and results."""
    last = next((message for message in reversed(wire) if message["role"] != "system"), None)
    if last is not None and last["role"] == "user":
        last["content"].append(part)
    else:
        wire.append({"role": "user", "content": [part]})


class _MessagesReader:
    """Reads events as plain JSON data, because the SDK's types would convert wrong values to plausible values."""

    def __init__(self, provider: str) -> None:
        self.usage = ReportedUsage()
        self.stop: StopReason | None = None
        self.done = False
        self.progress = 0
        self._provider = provider
        self._parts: dict[int, _BlockInProgress] = {}

    def feed(self, event: dict[str, Any]) -> str:
        match event.get("type"):
            case "content_block_delta":
                text, grew = self._part(event).add(event["delta"])
                self.progress += grew
                return text
            case "content_block_start":
                self._parts[event["index"]] = part = _BlockInProgress(event["content_block"])
                self.progress += 1
                return str(part.raw["text"]) if part.raw["type"] == "text" else ""
            case "message_start":
                self._count(event["message"].get("usage"))
            case "message_delta":
                self.usage.output = None  # The value at the start is a placeholder.
                self._count(event.get("usage"))
                if (reason := event["delta"].get("stop_reason")) is not None:
                    self.stop = STOPS.get(reason, "error")
                    self.progress += 1
            case "message_stop":
                self.done = True
        return ""

    def blocks(self) -> list[Block]:
        """Return the blocks of the response, in order."""
        parts = (part.block(self._provider) for _, part in sorted(self._parts.items()))
        return [block for block in parts if block != Text("")]

    def _part(self, event: dict[str, Any]) -> _BlockInProgress:
        part = self._parts.get(event["index"])
        if part is None:
            raise ValueError(f"content_block_delta for block {event['index']!r}, which was not started")
        return part

    def _count(self, reported: Any) -> None:
        """Store the counts that the API reported. Each count is a running total.

        A count that is not reported keeps its value.
        """
        if not isinstance(reported, dict):
            return
        for name, field in USAGE_FIELDS.items():
            if (value := reported.get(field)) is not None:
                setattr(self.usage, name, value)


class _BlockInProgress:
    """One block of a response while it is streamed."""

    def __init__(self, raw: dict[str, Any]) -> None:
        self.raw = raw
        self._added: list[str] = []
        self._signature = str(raw.get("signature") or "")

    def add(self, delta: dict[str, Any]) -> tuple[str, bool]:
        """Add a delta. Return its text, and whether the delta adds any content."""
        kind = delta.get("type")
        if kind == "signature_delta":
            self._signature += delta["signature"]
            return "", True
        if kind not in DELTA_FIELDS:
            return "", False
        added: str = delta[DELTA_FIELDS[kind]]
        if not isinstance(added, str):
            raise ValueError(f"{kind} contains {added!r:.80} instead of text")
        self._added.append(added)
        return (added if kind == "text_delta" else ""), bool(added)

    def block(self, provider: str) -> Block:
        """Return the block in its current state."""
        raw, added = self.raw, "".join(self._added)
        match raw["type"]:
            case "text":
                return Text(join_surrogates(raw["text"] + added))
            case "thinking":
                return Thinking(join_surrogates(raw["thinking"] + added), self._signature or None, provider)
            case "tool_use":
                return ToolUse(raw["id"], raw["name"], parse_input(added) if added else scrub(raw["input"]))
        if added:
            raw = raw | {"input": parse_input(added)}
        return Opaque(provider, scrub(raw))
