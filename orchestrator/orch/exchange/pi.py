"""Sessions of pi, versions 1 to 3: a header, then entries that form a tree; before ids there were, a list."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any, Final

import msgspec

from orch_protocol.entries import (
    BranchSummary,
    CompactionEntry,
    Custom,
    CustomMessage,
    Label,
    MessageEntry,
    ModelChange,
    Origin,
    SessionInfo,
    ThinkingLevelChange,
)
from orch_protocol.messages import Block, Image, Message, Opaque, Text, Thinking, ToolResult, ToolUse, Usage, user
from orch_worker.backends.families import ratios_named

from .found import SHAPE_ERRORS, Found, Kept, Reading, Told, fitting
from .grafting import Named, graft
from .lines import Row

__all__ = ["SYSTEM", "UNREADABLE", "VERSION", "entry_time", "read_session", "usage_of"]

VERSION: Final = 3
UNREADABLE: Final = "unreadable"
SYSTEM: Final = "orch.system"
"""What a message of the system is called in a file of pi's, which has none."""
OURS: Final = frozenset({"type", "id", "parentId", "timestamp", "s", "c", "m"})


def read_session(rows: list[Row], reading: Reading) -> Found:
    """Return the conversation in a session file. Raises DamagedError, ForeignFileError."""
    header = rows[0][1] if rows[0][1].get("type") == "session" else {}
    if not header:
        reading.fault(rows[0][0], "should be the header, and is none", "the file is read without one")
    version = header.get("version", 1)
    if not isinstance(version, int) or version > VERSION:
        raise reading.foreign(f"it is of version {version!r:.20}, and {VERSION} is the last that is known")
    entries = rows[1:] if header else rows
    names = [_named(row) for row in entries]
    if not any(each.told and each.id is not None for each in names):
        # The first version: each entry follows the one before it.
        names = [Named(each.line, None, None, told=False) for each in names]
    else:
        for each in names:
            if each.id is None or not each.told:
                reading.fault(each.line, "has no id, or names no entry that it follows", "it is put in where it stands")
    places, ids = graft(names, reading)
    reader = _Reader(reading, ids, header)
    told: list[Told] = []
    path: dict[str, str | None] = {}
    for (line, row), (id, parent) in zip(entries, places, strict=True):
        path[id] = parent
        told.append(reader.entry(line, row, id, parent, path, entries, places))
    names_given = [each.name for each in told if isinstance(each, SessionInfo) and each.name]
    return Found(
        name=reading.path.name,
        shape="pi session",
        entries=tuple(told),
        title=names_given[-1] if names_given else "",
        cwd=header["cwd"] if isinstance(header.get("cwd"), str) else "",
        ratios=ratios_named(reader.family),
        repairs=reading.repairs,
        notes=reader.notes(),
    )


def _named(row: Row) -> Named:
    line, fields = row
    id, parent = fields.get("id"), fields.get("parentId")
    told = "parentId" in fields and isinstance(parent, str | None)
    return Named(line, id if isinstance(id, str) else None, parent if told else None, told)


class _Reader:
    """Turns entries into ours, one into one."""

    def __init__(self, reading: Reading, ids: dict[str, str], header: dict[str, Any]) -> None:
        self.family = ""
        self._reading = reading
        self._ids = ids
        self._last = entry_time(header.get("timestamp")) or "1970-01-01T00:00:00.000Z"
        self._unknown: dict[str, int] = {}

    def notes(self) -> tuple[str, ...]:
        """Return what is not as it was."""
        if not self._unknown:
            return ()
        kinds = ", ".join(f"{count} {kind[:40]!r}" for kind, count in self._unknown.items())
        return (f"entries of unknown types are kept and say nothing: {kinds}",)

    def entry(
        self,
        line: int,
        row: dict[str, Any],
        id: str,
        parent: str | None,
        path: dict[str, str | None],
        entries: list[Row],
        places: list[tuple[str, str | None]],
    ) -> Told:
        """Return the entry on a line. Raises DamagedError when it is none."""
        inner = row.get("message")
        time = entry_time(row.get("timestamp")) or entry_time(inner.get("timestamp") if isinstance(inner, dict) else 0)
        self._last = time = time or self._last
        base: dict[str, Any] = {"id": id, "parent_id": parent, "timestamp": time}
        kind = row.get("type")
        try:
            match kind:
                case "message":
                    return self._message(row["message"], base)
                case "custom_message" if row.get("customType") == SYSTEM:
                    return MessageEntry(message=fitting(Message("system", tuple(_blocks(row["content"])))), **base)
                case "custom_message":
                    return self._custom_message(row, base)
                case "branch_summary":
                    left, details = self._known(row.get("fromId")), row.get("details")
                    return BranchSummary(from_id=left, summary=_text(row["summary"]), details=details, **base)
                case "label":
                    label = row.get("label")
                    said = None if label is None else _text(label)
                    return Label(target_id=self._known(row["targetId"]) or "", label=said, **base)
                case "model_change":
                    return ModelChange(provider=_text(row["provider"]), model_id=_text(row["modelId"]), **base)
                case "thinking_level_change":
                    return ThinkingLevelChange(thinking_level=_text(row["thinkingLevel"]), **base)
                case "compaction":
                    return self._compaction(line, row, base, path, entries, places)
                case "custom":
                    return Custom(custom_type=_text(row["customType"]), data=row.get("data"), **base)
                case "session_info":
                    name = row.get("name")
                    return SessionInfo(name=None if name is None else _text(name), **base)
        except SHAPE_ERRORS as error:
            self._reading.fault(line, f"is no {kind} entry: {error!r:.200}", "what it says is left out")
            return Kept(id, parent, time, UNREADABLE, _rest(row))
        if not isinstance(kind, str) or not kind:
            self._reading.fault(line, "is an entry without a type", "what it says is left out")
            return Kept(id, parent, time, UNREADABLE, _rest(row))
        self._unknown[kind] = self._unknown.get(kind, 0) + 1
        return Kept(id, parent, time, f"foreign_{kind}" if _is_ours(kind) else kind, _rest(row))

    def _known(self, id: Any) -> str | None:
        """Return what the id of another entry is here; None for none, as a file says that."""
        return self._ids.get(id) if isinstance(id, str) else None

    def _custom_message(self, row: dict[str, Any], base: dict[str, Any]) -> Told:
        content = tuple(block for block in _blocks(row["content"]) if isinstance(block, Text | Image))
        return CustomMessage(
            custom_type=_text(row["customType"]),
            content=content,
            display=row.get("display") is not False,
            details=row.get("details"),
            **base,
        )

    def _message(self, message: dict[str, Any], base: dict[str, Any]) -> Told:
        match message["role"]:
            case "assistant":
                content = tuple(_blocks(message["content"], str(message.get("provider", ""))))
                if message.get("api"):
                    self.family = f"{message['api']} {message.get('model', '')}"
                return MessageEntry(message=Message("assistant", content), origin=_origin(message), **base)
            case "toolResult":
                parts = tuple(_blocks(message["content"]))
                if not all(isinstance(part, Text | Image) for part in parts):
                    raise ValueError("a result is text and images")
                id, failed = message["toolCallId"], message.get("isError") is True
                return MessageEntry(message=Message("user", (ToolResult(_text(id), parts, failed),)), **base)  # type: ignore[arg-type]
            case "bashExecution":
                ran = user(f"Ran `{_text(message['command'])}`\n{_text(message['output'])}")
                if message.get("excludeFromContext") is True:
                    return Custom(custom_type="bashExecution", data=message, **base)
                return MessageEntry(message=ran, **base)
            case "compactionSummary" | "branchSummary":
                return MessageEntry(message=user(_text(message["summary"])), **base)
            case "user" | "custom" | "hookMessage":
                said = fitting(Message("user", tuple(_blocks(message["content"]))))
                return MessageEntry(message=said, **base)
        raise ValueError(f"unknown role {message['role']!r:.40}")

    def _compaction(
        self,
        line: int,
        row: dict[str, Any],
        base: dict[str, Any],
        path: dict[str, str | None],
        entries: list[Row],
        places: list[tuple[str, str | None]],
    ) -> Told:
        summary, kept = _text(row["summary"]), ""
        before, at = set(), base["parent_id"]
        while at is not None:
            before.add(at)
            at = path[at]
        if "firstKeptEntryIndex" in row:
            # Counts all lines of the file, the header among them.
            first = int(row["firstKeptEntryIndex"]) - 1
            kept = places[first][0] if 0 <= first < len(places) else ""
        else:
            first_kept = _text(row["firstKeptEntryId"])
            kept = self._ids.get(first_kept, "")
            if kept not in before and first_kept != row.get("id"):
                wrong = f"keeps what follows the entry {first_kept[:40]!r}, which is not before it"
                self._reading.fault(line, wrong, "nothing before it is kept")
                kept = ""
        # What is kept begins with a message, whatever else stands before that.
        behind = kept == ""
        for (_, other), (id, _parent) in zip(entries, places, strict=True):
            behind = behind or id == kept
            if kept and behind and id in before and other.get("type") in ("message", "custom_message"):
                kept = id
                break
        tokens = row.get("tokensBefore")
        return CompactionEntry(
            summary=summary,
            first_kept_entry_id=kept or base["id"],
            tokens_before=tokens if isinstance(tokens, int) else 0,
            **base,
        )


def _is_ours(kind: str) -> bool:
    """Whether an entry of this type would be taken for one of ours, which it is not."""
    return kind in ("archive", "archive_summary", "turn_start", "turn_end", "session", "checkout", UNREADABLE)


def _rest(row: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in row.items() if key not in OURS}


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise TypeError(f"text is wanted, not {value!r:.40}")
    return value


def _blocks(content: Any, provider: str = "") -> Iterator[Block]:
    if not isinstance(content, str | list):
        raise TypeError(f"content is text or a list of blocks, not {content!r:.40}")
    for block in [{"type": "text", "text": content}] if isinstance(content, str) else content:
        match block:
            case {"type": "text", "text": str(text)}:
                yield Text(text)
            case {"type": "thinking", "redacted": True, "thinkingSignature": str(data)}:
                yield Opaque(provider, {"type": "redacted_thinking", "data": data})
            case {"type": "thinking", "thinking": str(text)}:
                yield _thinking(text, block.get("thinkingSignature"), provider)
            case {"type": "toolCall", "id": str(id), "name": str(name), "arguments": dict(arguments)}:
                yield ToolUse(id, name, arguments)
            case {"type": "image", "data": str(data)}:
                yield Image(str(block.get("mimeType", "image/png")), data)
            case _:
                raise ValueError(f"unknown block {block!r:.60}")


def _thinking(text: str, signature: Any, provider: str) -> Block:
    if isinstance(signature, str) and signature.startswith("{"):
        # Some providers give back a whole item, which is to return to them as it is.
        try:
            return Opaque(provider, msgspec.json.decode(signature, type=dict[str, Any]))
        except SHAPE_ERRORS:
            pass
    return Thinking(text, signature if isinstance(signature, str) and signature else None, provider)


def _origin(message: dict[str, Any]) -> Origin:
    said = {key: message.get(key) for key in ("api", "provider", "model", "stopReason")}
    api, provider, model, stop = (value if isinstance(value, str) else "" for value in said.values())
    return Origin(api, provider, model, stop, usage_of(message.get("usage")))


def usage_of(told: Any) -> Usage | None:
    """Return what a response took, as a file tells it; None when it does not."""
    if not isinstance(told, dict):
        return None

    def number(*keys: str) -> int:
        return next((each for key in keys if isinstance(each := told.get(key), int) and 0 <= each < 1 << 53), 0)

    cost = told.get("cost")
    total = cost.get("total") if isinstance(cost, dict) else None
    known = isinstance(total, int | float) and 0 <= total < 1e9
    return Usage(
        number("input", "input_tokens", "prompt_tokens"),
        number("output", "output_tokens", "completion_tokens"),
        number("cacheRead", "cache_read_input_tokens", "cache_read_tokens"),
        number("cacheWrite", "cache_creation_input_tokens", "cache_write_tokens"),
        float(total) if known and total is not None else 0.0,
        known,
    )


def entry_time(said: Any) -> str:
    """Return a time, ISO 8601 or milliseconds since the epoch, as entries have it; "" when it is none."""
    try:
        if isinstance(said, int | float) and said > 0:
            at = datetime.fromtimestamp(said / 1000, UTC)
        elif isinstance(said, str):
            at = datetime.fromisoformat(said)
            at = at.astimezone(UTC) if at.tzinfo is not None else at.replace(tzinfo=UTC)
        else:
            return ""
    except (ValueError, OverflowError, OSError):
        return ""
    return at.isoformat(timespec="milliseconds").replace("+00:00", "Z")
