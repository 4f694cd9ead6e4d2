"""The format of the Anthropic Messages API.

A message has a role, and its content is a list of typed blocks. Requests contain cache markers, and thinking blocks are
returned unchanged.
"""

from __future__ import annotations

import json
import re
from collections.abc import Set
from itertools import pairwise, takewhile
from typing import Any, Final

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
)
from orch_protocol.core.text import scrub

from ...conversation.tokens import strings
from ..base import DEFAULT_ANSWER_TOKENS, PromptPrefix
from .format import ModelRequest, ResponseReader, text_in
from .normalize_messages import ProviderRequirements, join_surrogates, normalize_messages, parse_input, with_model
from .provider_error import ProviderError, ReportedError
from .reported_usage import ReportedUsage
from .server_sent_events import ServerSentEvent

__all__ = [
    "CAN_BE_MARKED",
    "LOOKBACK",
    "MARKER",
    "MARKERS",
    "MessagesFormat",
    "decode_message",
    "encode_message",
    "encode_tool",
    "read_usage",
]

ROLES: Final = ("user", "assistant", "system")
IDS: Final = re.compile(r"[a-zA-Z0-9_-]{1,64}")
NAMES: Final = re.compile(r"[a-zA-Z0-9_-]{1,128}")
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
MARKERS: Final = 3
"""The maximum number of markers in messages. The API accepts four markers, and the system text has one."""
LOOKBACK: Final = 20
"""The number of blocks before a marker in which the API looks for a cached prefix."""
CAN_BE_MARKED: Final = frozenset({"text", "image", "document", "tool_use", "tool_result"})


class MessagesFormat:
    """Requests and responses of the API.

    Clouds require `version` in the body. They reject the fields in `without`, for example because the URL states them.
    """

    def __init__(self, version: str = "", without: Set[str] = frozenset()) -> None:
        self._version = {"anthropic_version": version} if version else {}
        self._without = without

    def request(self, request: ModelRequest) -> dict[str, Any]:
        """Return the body of the request."""
        flags = request.model.flags
        requirements = ProviderRequirements(
            request.provider,
            IDS,
            NAMES,
            request.name,
            images=flags.images,
            system=flags.system_messages,
            signed=True,  # Thinking without a signature comes from a truncated response.
        )
        messages = normalize_messages(request.messages, requirements)
        stable, rest = _stable(request)
        system = [text for text in (stable, rest) if text.strip()]
        while messages and messages[0].role == "system":
            system.append(text_of(messages.pop(0)))
        parts: list[dict[str, Any]] = [{"type": "text", "text": text} for text in system]
        tools = [encode_tool(tool.name, tool.description, tool.input_schema) for tool in request.tools]
        wire = list(map(encode_message, messages))
        if flags.cache_markers and request.prefix.repeats:
            _mark(parts[:1] if stable.strip() and rest else parts or tools)
            _mark_messages(wire, request.prefix)
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
        kept: dict[str, Any] = {name: value for name, value in fields.items() if value} | request.model.body
        # A series of calls that began without thinking must be continued without thinking.
        if (kept.get("thinking") or {}).get("type") == "enabled" and not _begins_with_thinking(wire):
            del kept["thinking"]
        return self._version | {name: value for name, value in kept.items() if name not in self._without}

    def new_reader(self, provider: str) -> ResponseReader:
        """Return a reader for one response."""
        return _MessagesReader(provider)


def decode_message(raw: Any, provider: str) -> Message:
    """Return `raw`, a message as JSON data. Raise ConfigError if it is not valid.

    Blocks of other types, and thinking, belong to `provider`.
    """
    if not isinstance(raw, dict) or raw.get("role") not in ROLES:
        role = raw.get("role") if isinstance(raw, dict) else raw
        raise ConfigError(f"a message must have the role user, assistant or system; got {role!r}")
    content = raw.get("content")
    if isinstance(content, str):
        return Message(raw["role"], (Text(content),))
    if not isinstance(content, list):
        raise ConfigError(f"the content of a message must be text or a list of blocks; got {content!r:.60}")
    model = raw.get("model")  # Responses of the API name their model.
    blocks = [_decode_block(block, provider) for block in content]
    return Message(raw["role"], with_model(blocks, model if isinstance(model, str) else ""))


def encode_message(message: Message) -> dict[str, Any]:
    """Return `message` as JSON data. Its list of blocks and the blocks are new objects."""
    return {"role": message.role, "content": list(map(_encode_block, message.content))}


def encode_tool(name: str, description: str, schema: dict[str, Any]) -> dict[str, Any]:
    """Return the definition of a tool."""
    return {"name": name, "description": description, "input_schema": schema}


def _decode_block(raw: Any, provider: str) -> Block:
    if not isinstance(raw, dict):
        raise ConfigError(f"a block must be an object with a type; got {raw!r:.60}")
    match raw:
        case {"type": "text", "text": str(text)}:
            return Text(text)
        case {"type": "thinking", "thinking": str(text)}:
            signature = raw.get("signature")
            return Thinking(text, signature if isinstance(signature, str) else None, provider)
        case {"type": "image", "source": {"type": "base64", "media_type": str(kind), "data": str(data)}}:
            return Image(kind, data)
        case {"type": "tool_use", "input": dict(input)}:
            return ToolUse(text_in(raw, "id"), text_in(raw, "name"), input)
        case {"type": "tool_use"}:
            return ToolUse(text_in(raw, "id"), text_in(raw, "name"), parse_input(raw.get("input")))
        case {"type": "tool_result"}:
            id = text_in(raw, "tool_use_id")
            content = raw.get("content")
            parts = [{"type": "text", "text": content}] if isinstance(content, str) else content or []
            return ToolResult(id, tuple(map(_decode_part, parts)), raw.get("is_error") is True)
        case _:
            return Opaque(provider, raw)


def _decode_part(raw: Any) -> Text | Image:
    """Return a part of a tool result as text or image. A block of another type becomes text."""
    block = _decode_block(raw, "")
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
            result = {"type": "tool_result", "tool_use_id": id, "content": list(map(_encode_block, content))}
            return result | ({"is_error": True} if is_error else {})
        case Opaque(raw=raw):
            return dict(raw) if isinstance(raw, dict) else {"type": "text", "text": str(raw)}


def _begins_with_thinking(wire: list[dict[str, Any]]) -> bool:
    """Return whether the unfinished series of calls at the end of the request begins with thinking.

    Return True if the request does not end with results of calls.
    """
    first: list[dict[str, Any]] = []
    for message in reversed(wire):
        if message["role"] == "assistant":
            first = message["content"]
        elif message["role"] == "user" and not any(part["type"] == "tool_result" for part in message["content"]):
            break
    return not first or first[0]["type"] in ("thinking", "redacted_thinking")


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


def _mark_messages(wire: list[dict[str, Any]], prefix: PromptPrefix) -> None:
    """Set up to three cache markers: at the end of the request, before the list of archives, after the context message.

    The provider finds a cached prefix only within 20 blocks before a marker. If the last step has more blocks, the end
    of the previous request gets a marker too. What precedes the list of archives stays when the next turns are
    archived. The context message is the same for all agents in a folder.
    """
    blocks = [part for message in wire for part in message["content"]]
    ends = [message["content"][-1] for message in wire if message["role"] == "user" and message["content"]]
    last, previous = ends[-1:], ends[-2:-1]
    is_far = previous and sum(1 for _ in takewhile(lambda part: part is not previous[0], reversed(blocks))) >= LOOKBACK
    records = [before for before, part in pairwise(blocks) if prefix.archives and part.get("text") == prefix.archives]
    contexts = [part for part in blocks if prefix.context and part.get("text") == prefix.context]
    wanted = [*last, *(previous if is_far else ()), *records[:1], *contexts[:1], *previous]
    for part in list({id(part): part for part in wanted}.values())[:MARKERS]:
        _mark([part])


def _end_with(wire: list[dict[str, Any]], part: dict[str, Any]) -> None:
    """Add `part` at the end of the last user message, after cache markers and results."""
    last = next((message for message in reversed(wire) if message["role"] != "system"), None)
    if last is not None and last["role"] == "user":
        last["content"].append(part)
    else:
        wire.append({"role": "user", "content": [part]})


class _MessagesReader(ResponseReader):
    def __init__(self, provider: str) -> None:
        super().__init__(provider)
        self._parts: dict[int, _BlockInProgress] = {}

    def feed(self, event: ServerSentEvent) -> str:
        if event.name in ("", "ping"):
            return ""
        if event.name == "error":
            raise ReportedError(ProviderError.read(_error_in(event.data), 200))
        return self._add_value(json.loads(event.data)) if event.data else ""

    def _add(self, event: dict[str, Any]) -> str:
        match event.get("type"):
            case "content_block_delta":
                text, grew = self._part(event).add(event["delta"])
                self.progress += grew
                return text
            case "content_block_start":
                self._parts[event["index"]] = part = _BlockInProgress(event["content_block"])
                self.progress += 1
                return str(part.raw["text"]) if part.raw["type"] == "text" else ""
            case "content_block_stop" if (ended := self._parts.get(event["index"])) is not None:
                ended.ended = True
            case "message_start":
                self._count(event["message"].get("usage"))
            case "message_delta":
                self.usage.output = None  # The value at the start is a placeholder.
                self._count(event.get("usage"))
                if (reason := event["delta"].get("stop_reason")) not in (None, ""):
                    self.stop = STOPS.get(reason, "error")
                    self.unknown_stop = "" if reason in STOPS else reason
                    self.progress += 1
            case "message_stop":
                self.done = True
        return ""

    def blocks(self) -> list[Block]:
        for part in self._parts.values():
            # Without a known stop reason, a call is complete only if its end arrived.
            part.ended = part.ended or bool(self.stop and not self.unknown_stop)
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


def read_usage(reported: dict[str, Any]) -> ReportedUsage:
    """Return the token counts in the field `usage` of a response."""
    input, output, cache_read, cache_write = (reported.get(field) for field in USAGE_FIELDS.values())
    return ReportedUsage(input, output, cache_read, cache_write)


def _error_in(data: str) -> Any:
    """Return the JSON value in `data`, or the text itself if it is not JSON."""
    try:
        return json.loads(data)
    except (ValueError, RecursionError):
        return data


class _BlockInProgress:
    """One block of a response while it is streamed."""

    def __init__(self, raw: dict[str, Any]) -> None:
        self.raw = raw
        self.ended = False
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
        added = delta[DELTA_FIELDS[kind]]
        if kind == "input_json_delta" and isinstance(added, dict):
            added = json.dumps(added)
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
                input = parse_input(added or raw["input"])
                id, name = join_surrogates(raw["id"]), join_surrogates(raw["name"])
                return ToolUse(id, name, input if input or self.ended else {INVALID_INPUT: ""})
        if added:
            raw = raw | {"input": parse_input(added)}
        return Opaque(provider, scrub(raw))
