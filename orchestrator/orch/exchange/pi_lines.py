"""A conversation as a session file of pi's third version: its entries, its message shapes, its way to say where it
goes on, which is the last line."""

from __future__ import annotations

import json
from collections.abc import Iterator
from datetime import datetime
from typing import Any, Final, NamedTuple

from orch_protocol.entries import (
    BranchSummary,
    CompactionEntry,
    Custom,
    CustomMessage,
    Label,
    MessageEntry,
    ModelChange,
    SessionInfo,
    ThinkingLevelChange,
)
from orch_protocol.ids import new_entry_id
from orch_protocol.messages import Block, Image, Opaque, Text, Thinking, ToolResult, ToolUse, Usage, tool_uses

from .found import Found, Kept, Told
from .pi import SYSTEM, UNREADABLE, VERSION

__all__ = ["Author", "pi_lines"]

STOPS: Final = frozenset({"stop", "length", "toolUse", "error", "aborted"})
REDACTED: Final = "redacted_thinking"


class Author(NamedTuple):
    """Who the messages are from that do not say it themselves: an API, a provider, a model."""

    api: str
    provider: str
    model: str


def pi_lines(found: Found, id: str, author: Author, notes: list[str]) -> Iterator[dict[str, Any]]:
    """Yield the lines of the file, the header first. What has no place in it is told in `notes`."""
    started = found.entries[0].timestamp if found.entries else "1970-01-01T00:00:00.000Z"
    yield {"type": "session", "version": VERSION, "id": id, "timestamp": started, "cwd": found.cwd}
    writer = _Writer(found, author, notes)
    last = None
    for entry in found.entries:
        for line in writer.lines(entry):
            last = line["id"]
            yield line
    leaf = writer.at[found.entries[-1].id] if found.entries else None
    if leaf != last:
        # The last line is where it goes on: this one says nothing, and says it there.
        name = found.title or None
        line = {"type": "session_info", "id": writer.new(), "parentId": leaf, "timestamp": found.entries[-1].timestamp}
        yield line | ({"name": name} if name else {})
    writer.tell()


class _Writer:
    """Turns our entries into pi's, each into none, one or several."""

    def __init__(self, found: Found, author: Author, notes: list[str]) -> None:
        self.at: dict[str, str | None] = {}
        """Behind which line of the file an entry stands: its own last one, or that of what it follows."""
        self._taken = {entry.id for entry in found.entries}
        self._author = author
        self._notes = notes
        messages = (entry.message for entry in found.entries if isinstance(entry, MessageEntry))
        self._calls = {call.id: call.name for message in messages for call in tool_uses(message)}
        self._left: dict[str, int] = {}

    def new(self) -> str:
        """Return an id of this file."""
        id = new_entry_id(self._taken)
        self._taken.add(id)
        return id

    def tell(self) -> None:
        """Say what has no place in such a file."""
        if self._left:
            counted = ", ".join(f"{count} {kind}" for kind, count in self._left.items())
            self._notes.append(f"left out, for pi has no place for it: {counted}")

    def lines(self, entry: Told) -> Iterator[dict[str, Any]]:
        """Yield the lines that an entry becomes."""
        parent = self.at[entry.parent_id] if entry.parent_id is not None else None
        for number, fields in enumerate(self._fields(entry)):
            id = entry.id if not number else self.new()
            yield {"type": fields.pop("type"), "id": id, "parentId": parent, "timestamp": entry.timestamp} | fields
            parent = id
        self.at[entry.id] = parent

    def _fields(self, entry: Told) -> Iterator[dict[str, Any]]:
        match entry:
            case MessageEntry():
                yield from self._messages(entry)
            case CompactionEntry(summary=summary, first_kept_entry_id=kept, tokens_before=tokens):
                yield {"type": "compaction", "summary": summary, "firstKeptEntryId": kept, "tokensBefore": tokens}
            case BranchSummary(from_id=left, summary=summary, details=details):
                yield {"type": "branch_summary", "fromId": left or "root", "summary": summary} | _given(details=details)
            case CustomMessage(custom_type=kind, content=content, display=display, details=details):
                said = {"customType": kind, "content": list(map(_part, content)), "display": display}
                yield {"type": "custom_message"} | said | _given(details=details)
            case Custom(custom_type=kind, data=data):
                yield {"type": "custom", "customType": kind} | _given(data=data)
            case Label(target_id=target, label=label):
                yield {"type": "label", "targetId": target} | _given(label=label)
            case SessionInfo(name=name):
                yield {"type": "session_info"} | _given(name=name)
            case ModelChange(provider=provider, model_id=model):
                yield {"type": "model_change", "provider": provider, "modelId": model}
            case ThinkingLevelChange(thinking_level=level):
                if level == "max":  # pi ends one before, and knows no word of it
                    self._leave("level of thinking above xhigh")
                    level = "xhigh"
                yield {"type": "thinking_level_change", "thinkingLevel": level}
            case Kept(type=kind, fields=fields) if kind != UNREADABLE:
                yield {"type": kind} | fields

    def _messages(self, entry: MessageEntry) -> Iterator[dict[str, Any]]:
        message, at = entry.message, _milliseconds(entry.timestamp)
        if message.role == "assistant":
            yield {"type": "message", "message": self._assistant(entry) | {"timestamp": at}}
            return
        parts = []
        for block in message.content:
            if isinstance(block, ToolResult):
                told = {"toolCallId": block.tool_use_id, "toolName": self._calls.get(block.tool_use_id, "")}
                content = list(map(_part, block.content))
                result = (
                    {"role": "toolResult"} | told | {"content": content, "isError": block.is_error, "timestamp": at}
                )
                yield {"type": "message", "message": result}
            elif isinstance(block, Text | Image):
                parts.append(_part(block))
            else:
                self._leave(type(block).__name__)
        if message.role == "system":
            yield {"type": "custom_message", "customType": SYSTEM, "content": parts, "display": False}
        elif parts or not message.content:
            yield {"type": "message", "message": {"role": "user", "content": parts, "timestamp": at}}

    def _assistant(self, entry: MessageEntry) -> dict[str, Any]:
        blocks, origin = entry.message.content, entry.origin
        signed = next((block.provider for block in blocks if isinstance(block, Thinking | Opaque)), "")
        provider = signed or (origin.provider if origin else "") or self._author.provider
        stop = origin.stop if origin and origin.stop in STOPS else "toolUse" if tool_uses(entry.message) else "stop"
        return {
            "role": "assistant",
            "content": [part for block in blocks if (part := self._block(block, provider)) is not None],
            "api": (origin.api if origin else "") or self._author.api,
            "provider": provider,
            "model": (origin.model if origin else "") or self._author.model,
            "usage": _usage(entry.usage or (origin.usage if origin else None) or Usage()),
            "stopReason": stop,
        }

    def _block(self, block: Block, provider: str) -> dict[str, Any] | None:
        match block:
            case Text() | Image():
                return _part(block)
            case Thinking(thinking, signature, owner):
                # What one provider signed is nothing to another.
                told = {"thinkingSignature": signature} if signature and owner in ("", provider) else {}
                return {"type": "thinking", "thinking": thinking} | told
            case ToolUse(id, name, input):
                return {"type": "toolCall", "id": id, "name": name, "arguments": input}
            case Opaque(owner, {"type": kind, "data": str(data)}) if kind == REDACTED and owner == provider:
                return {"type": "thinking", "thinking": "", "thinkingSignature": data, "redacted": True}
            case Opaque(owner, dict(raw)) if owner == provider:
                return {"type": "thinking", "thinking": "", "thinkingSignature": json.dumps(raw)}
        self._leave(type(block).__name__)
        return None

    def _leave(self, kind: str) -> None:
        self._left[kind] = self._left.get(kind, 0) + 1


def _part(block: Text | Image) -> dict[str, Any]:
    if isinstance(block, Text):
        return {"type": "text", "text": block.text}
    return {"type": "image", "data": block.data, "mimeType": block.media_type}


def _given(**fields: Any) -> dict[str, Any]:
    return {key: value for key, value in fields.items() if value is not None}


def _usage(usage: Usage) -> dict[str, Any]:
    parts = {
        "input": usage.input_tokens,
        "output": usage.output_tokens,
        "cacheRead": usage.cache_read_tokens,
        "cacheWrite": usage.cache_write_tokens,
    }
    cost = dict.fromkeys(parts, 0.0) | {"total": usage.cost_usd}
    return parts | {"totalTokens": sum(parts.values()), "cost": cost}


def _milliseconds(timestamp: str) -> int:
    try:
        return int(datetime.fromisoformat(timestamp).timestamp() * 1000)
    except ValueError:
        return 0
