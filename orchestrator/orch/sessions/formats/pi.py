"""Read and write sessions of pi, versions 1 to 3.

A file contains a header and a tree of entries. If the entries have no ids, they form a list.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from typing import Any, Final, NamedTuple, cast

import msgspec

from orch_protocol.core.ids import new_entry_id
from orch_protocol.core.messages import (
    Block,
    Image,
    Message,
    Opaque,
    Text,
    Thinking,
    ToolResult,
    ToolUse,
    Usage,
    tool_uses,
    user,
)
from orch_protocol.session.entries import (
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
from orch_worker.backends.formats.normalize_messages import with_model
from orch_worker.backends.model_families import ratios_named

from .conversation import SHAPE_ERRORS, ForeignEntry, ImportedEntry, ImportedSession, Reading, check_blocks
from .json_lines import Row
from .tree_builder import EntryLink, build_tree

__all__ = ["SYSTEM", "UNREADABLE", "VERSION", "DefaultOrigin", "entry_time", "pi_lines", "read_session", "usage_of"]


VERSION: Final = 3
UNREADABLE: Final = "unreadable"
SYSTEM: Final = "orch.system"
"""The type that marks a system message in a file of pi, because pi has no role for system messages."""
RESERVED_FIELDS: Final = frozenset({"type", "id", "parentId", "timestamp", "s", "c", "m"})


def read_session(rows: list[Row], reading: Reading) -> ImportedSession:
    """Return the conversation in a session file. Raises DamagedError, ForeignFileError."""
    header = rows[0][1] if rows[0][1].get("type") == "session" else {}
    if not header:
        reading.handle_fault(
            rows[0][0], "should be the header, but is not a header", "the file is read without a header"
        )
    version = header.get("version", 1)
    if not isinstance(version, int) or version > VERSION:
        raise reading.foreign_error(f"it has version {version!r:.20}; the newest supported version is {VERSION}")
    entries = rows[1:] if header else rows
    links = [_entry_link(row) for row in entries]
    if not any(each.has_parent_field and each.id is not None for each in links):
        # In version 1, each entry follows the entry before it.
        links = [EntryLink(each.line, None, None, has_parent_field=False) for each in links]
    else:
        for each in links:
            if each.id is None or not each.has_parent_field:
                reading.handle_fault(
                    each.line, "has no id, or does not name its parent", "it keeps its position in the file"
                )
    places, ids = build_tree(links, reading)
    reader = _Reader(reading, ids, header)
    entries_read: list[ImportedEntry] = []
    path: dict[str, str | None] = {}
    for (line, row), (id, parent) in zip(entries, places, strict=True):
        path[id] = parent
        entry = reader.entry(line, row, id, parent, path, entries, places)
        if isinstance(entry, MessageEntry | CustomMessage):
            reader.messages[id] = entry
        entries_read.append(entry)
    names_given = [each.name for each in entries_read if isinstance(each, SessionInfo) and each.name]
    return ImportedSession(
        name=reading.path.name,
        shape="pi session",
        entries=tuple(entries_read),
        title=names_given[-1] if names_given else "",
        cwd=header["cwd"] if isinstance(header.get("cwd"), str) else "",
        ratios=ratios_named(reader.family),
        repairs=reading.repairs,
        notes=reader.notes(),
        edits=reader.edits,
    )


def _entry_link(row: Row) -> EntryLink:
    line, fields = row
    id, parent = fields.get("id"), fields.get("parentId")
    has_parent = "parentId" in fields and isinstance(parent, str | None)
    return EntryLink(line, id if isinstance(id, str) else None, parent if has_parent else None, has_parent)


class _Reader:
    """Converts each entry of pi to one entry of orch."""

    def __init__(self, reading: Reading, ids: dict[str, str], header: dict[str, Any]) -> None:
        self.family = ""
        self._reading = reading
        self._ids = ids
        self._last = entry_time(header.get("timestamp")) or "1970-01-01T00:00:00.000Z"
        self._unknown: dict[str, int] = {}
        self.messages: dict[str, MessageEntry | CustomMessage] = {}
        """The messages so far, by id."""
        self.edits: dict[str, MessageEntry | CustomMessage] = {}

    def notes(self) -> tuple[str, ...]:
        """Return a note about entries of unknown types."""
        if not self._unknown:
            return ()
        kinds = ", ".join(f"{count} {kind[:40]!r}" for kind, count in self._unknown.items())
        return (f"entries of unknown types are kept without content: {kinds}",)

    def entry(
        self,
        line: int,
        row: dict[str, Any],
        id: str,
        parent: str | None,
        path: dict[str, str | None],
        entries: list[Row],
        places: list[tuple[str, str | None]],
    ) -> ImportedEntry:
        """Return the entry on the line `line`. Raises DamagedError if the entry is not valid."""
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
                    return MessageEntry(message=check_blocks(Message("system", tuple(_blocks(row["content"])))), **base)
                case "custom_message":
                    return self._custom_message(row, base)
                case "branch_summary":
                    left, details = self._known(row.get("fromId")), row.get("details")
                    return BranchSummary(from_id=left, summary=_text(row["summary"]), details=details, **base)
                case "label":
                    label = row.get("label")
                    label_text = None if label is None else _text(label)
                    return Label(target_id=self._known(row["targetId"]) or "", label=label_text, **base)
                case "model_change":
                    return ModelChange(provider=_text(row["provider"]), model_id=_text(row["modelId"]), **base)
                case "thinking_level_change":
                    return ThinkingLevelChange(thinking_level=_text(row["thinkingLevel"]), **base)
                case "compaction":
                    return self._compaction(line, row, base, path, entries, places)
                case "custom":
                    return Custom(custom_type=_text(row["customType"]), data=row.get("data"), **base)
                case "context_edit":
                    target = self._known(row["targetId"])
                    if target is None or target not in self.messages or target not in _ancestors(parent, path):
                        raise ValueError(f"{row['targetId']!r:.40} is not an earlier message of its branch")
                    self.edits[id] = _edited(self.messages[target], row["replacement"])
                    return ForeignEntry(id, parent, time, kind, _rest(row))
                case "session_info":
                    name = row.get("name")
                    return SessionInfo(name=None if name is None else _text(name), **base)
        except SHAPE_ERRORS as error:
            self._reading.handle_fault(line, f"is not a valid {kind} entry: {error!r:.200}", "its content is left out")
            return ForeignEntry(id, parent, time, UNREADABLE, _rest(row))
        if not isinstance(kind, str) or not kind:
            self._reading.handle_fault(line, "is an entry without a type", "its content is left out")
            return ForeignEntry(id, parent, time, UNREADABLE, _rest(row))
        self._unknown[kind] = self._unknown.get(kind, 0) + 1
        return ForeignEntry(id, parent, time, f"foreign_{kind}" if _is_orch_type(kind) else kind, _rest(row))

    def _known(self, id: Any) -> str | None:
        """Return the new id of the entry that `id` refers to. Return None if there is no such entry."""
        return self._ids.get(id) if isinstance(id, str) else None

    def _custom_message(self, row: dict[str, Any], base: dict[str, Any]) -> ImportedEntry:
        content = tuple(block for block in _blocks(row["content"]) if isinstance(block, Text | Image))
        return CustomMessage(
            custom_type=_text(row["customType"]),
            content=content,
            display=row.get("display") is not False,
            details=row.get("details"),
            **base,
        )

    def _message(self, message: dict[str, Any], base: dict[str, Any]) -> ImportedEntry:
        match message["role"]:
            case "assistant":
                blocks = tuple(_blocks(message["content"], str(message.get("provider", ""))))
                origin = _origin(message)
                content = with_model(blocks, origin.model)
                if message.get("api"):
                    self.family = f"{message['api']} {message.get('model', '')}"
                return MessageEntry(message=Message("assistant", content), origin=origin, **base)
            case "toolResult":
                id, failed = message["toolCallId"], message.get("isError") is True
                result = ToolResult(_text(id), _parts(message["content"]), failed)
                return MessageEntry(message=Message("user", (result,)), **base)
            case "bashExecution":
                ran = user(f"Ran `{_text(message['command'])}`\n{_text(message['output'])}")
                if message.get("excludeFromContext") is True:
                    return Custom(custom_type="bashExecution", data=message, **base)
                return MessageEntry(message=ran, **base)
            case "compactionSummary" | "branchSummary":
                return MessageEntry(message=user(_text(message["summary"])), **base)
            case "system":  # Its text is in sections, of which `content` contains none.
                sections = message.get("sections")
                texts = sections.values() if isinstance(sections, dict) else _blocks(message["content"])
                system = "\n\n".join(_text(each.text if isinstance(each, Text) else each) for each in texts)
                return MessageEntry(message=Message("system", (Text(system),)), **base)
            case "user" | "custom" | "hookMessage":
                read_message = check_blocks(Message("user", tuple(_blocks(message["content"]))))
                return MessageEntry(message=read_message, **base)
        raise ValueError(f"unknown role {message['role']!r:.40}")

    def _compaction(
        self,
        line: int,
        row: dict[str, Any],
        base: dict[str, Any],
        path: dict[str, str | None],
        entries: list[Row],
        places: list[tuple[str, str | None]],
    ) -> ImportedEntry:
        summary, kept = _text(row["summary"]), ""
        ancestors = _ancestors(base["parent_id"], path)
        if "firstKeptEntryIndex" in row:
            # The index counts all lines of the file, and the header is one of them.
            first = int(row["firstKeptEntryIndex"]) - 1
            kept = places[first][0] if 0 <= first < len(places) else ""
        elif row["firstKeptEntryId"] is not None:  # null keeps nothing
            first_kept = _text(row["firstKeptEntryId"])
            kept = self._ids.get(first_kept, "")
            if kept not in ancestors and first_kept != row.get("id"):
                wrong = f"keeps the entries after {first_kept[:40]!r}, which is not an earlier entry"
                self._reading.handle_fault(line, wrong, "nothing before it is kept")
                kept = ""
        # The kept part must begin with a message.
        is_kept = kept == ""
        for (_, other), (id, _parent) in zip(entries, places, strict=True):
            is_kept = is_kept or id == kept
            if kept and is_kept and id in ancestors and other.get("type") in ("message", "custom_message"):
                kept = id
                break
        tokens = row.get("tokensBefore")
        return CompactionEntry(
            summary=summary,
            first_kept_entry_id=kept or base["id"],
            tokens_before=tokens if isinstance(tokens, int) else 0,
            **base,
        )


def _ancestors(id: str | None, path: Mapping[str, str | None]) -> set[str]:
    """Return `id` and the ids of all entries before it on its branch. `path` contains the parent of each entry."""
    found = set()
    while id is not None:
        found.add(id)
        id = path[id]
    return found


def _edited(entry: MessageEntry | CustomMessage, replacement: Any) -> MessageEntry | CustomMessage:
    """Return `entry` with the content of `replacement`. A replacement that is None removes it from later requests."""
    if isinstance(entry, CustomMessage):
        parts = () if replacement is None else _parts(replacement["content"])
        return msgspec.structs.replace(entry, content=parts)
    role, old, origin = entry.message.role, entry.message.content, entry.origin
    if replacement is None:
        content: tuple[Block, ...] = ()
    elif isinstance(old[0] if old else None, ToolResult):
        result = cast(ToolResult, old[0])
        content = (msgspec.structs.replace(result, content=_parts(replacement["content"])),)
    else:
        blocks = tuple(_blocks(replacement["content"], origin.provider if origin else ""))
        content = with_model(blocks, origin.model if origin else "")
    return msgspec.structs.replace(entry, message=check_blocks(Message(role, content)))


def _parts(content: Any) -> tuple[Text | Image, ...]:
    parts = tuple(_blocks(content))
    if not all(isinstance(part, Text | Image) for part in parts):
        raise ValueError("its content must be text and images")
    return cast("tuple[Text | Image, ...]", parts)


def _is_orch_type(kind: str) -> bool:
    """Return whether orch would take an entry of the type `kind` for one of its own entries."""
    return kind in ("archive", "archive_summary", "turn_start", "turn_end", "session", "checkout", UNREADABLE)


def _rest(row: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in row.items() if key not in RESERVED_FIELDS}


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise TypeError(f"expected text; got {value!r:.40}")
    return value


def _blocks(content: Any, provider: str = "") -> Iterator[Block]:
    if not isinstance(content, str | list):
        raise TypeError(f"content must be text or a list of blocks; got {content!r:.40}")
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
        # Some providers return a whole item. Later requests must contain the same item unchanged.
        try:
            return Opaque(provider, msgspec.json.decode(signature, type=dict[str, Any]))
        except SHAPE_ERRORS:
            pass
    return Thinking(text, signature if isinstance(signature, str) and signature else None, provider)


def _origin(message: dict[str, Any]) -> Origin:
    details = {key: message.get(key) for key in ("api", "provider", "model", "stopReason")}
    api, provider, model, stop = (value if isinstance(value, str) else "" for value in details.values())
    return Origin(api, provider, model, stop, usage_of(message.get("usage")))


def usage_of(reported: Any) -> Usage | None:
    """Return the usage of a response as the file states it. Return None if the file states no usage."""
    if not isinstance(reported, dict):
        return None

    def number(*keys: str) -> int:
        return next((each for key in keys if isinstance(each := reported.get(key), int) and 0 <= each < 1 << 53), 0)

    cost = reported.get("cost")
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


def entry_time(value: Any) -> str:
    """Return a time in the format of entries. Return "" if `value` is not a valid time.

    `value` is ISO 8601 text, or milliseconds since the epoch.
    """
    try:
        if isinstance(value, int | float) and value > 0:
            at = datetime.fromtimestamp(value / 1000, UTC)
        elif isinstance(value, str):
            at = datetime.fromisoformat(value)
            at = at.astimezone(UTC) if at.tzinfo is not None else at.replace(tzinfo=UTC)
        else:
            return ""
    except (ValueError, OverflowError, OSError):
        return ""
    return at.isoformat(timespec="milliseconds").replace("+00:00", "Z")


# Writing a session file of pi, version 3.

STOPS: Final = frozenset({"stop", "length", "toolUse", "error", "aborted"})
REDACTED: Final = "redacted_thinking"


class DefaultOrigin(NamedTuple):
    """The API, provider and model for messages that do not state their own API, provider and model."""

    api: str
    provider: str
    model: str


def pi_lines(
    found: ImportedSession, id: str, default_origin: DefaultOrigin, notes: list[str]
) -> Iterator[dict[str, Any]]:
    """Yield the lines of the file, starting with the header.

    Content that pi does not support is listed in `notes`.
    """
    started = found.entries[0].timestamp if found.entries else "1970-01-01T00:00:00.000Z"
    yield {"type": "session", "version": VERSION, "id": id, "timestamp": started, "cwd": found.cwd}
    writer = _Writer(found, default_origin, notes)
    last = None
    for entry in found.entries:
        for line in writer.lines(entry):
            last = line["id"]
            yield line
    leaf = writer.at[found.entries[-1].id] if found.entries else None
    if leaf != last:
        # pi continues after the last line of the file, so the last line is an entry without effect.
        name = found.title or None
        line = {"type": "session_info", "id": writer.new(), "parentId": leaf, "timestamp": found.entries[-1].timestamp}
        yield line | ({"name": name} if name else {})
    writer.add_note()


class _Writer:
    """Converts each entry of orch to entries of pi. An entry may become no entry, one entry, or several entries."""

    def __init__(self, found: ImportedSession, default_origin: DefaultOrigin, notes: list[str]) -> None:
        self.at: dict[str, str | None] = {}
        """For each entry, the line that the entry's children follow.

        This is the entry's own last line. If the entry has no line, it is the last line of its parent.
        """
        self._taken = {entry.id for entry in found.entries}
        self._default_origin = default_origin
        self._notes = notes
        messages = (entry.message for entry in found.entries if isinstance(entry, MessageEntry))
        self._calls = {call.id: call.name for message in messages for call in tool_uses(message)}
        self._unsupported: dict[str, int] = {}

    def new(self) -> str:
        """Return a new id that is unique in the file."""
        id = new_entry_id(self._taken)
        self._taken.add(id)
        return id

    def add_note(self) -> None:
        """Add a note about the content that pi does not support."""
        if self._unsupported:
            counted = ", ".join(f"{count} {kind}" for kind, count in self._unsupported.items())
            self._notes.append(f"left out, because pi cannot store it: {counted}")

    def lines(self, entry: ImportedEntry) -> Iterator[dict[str, Any]]:
        """Yield the lines for the entry `entry`."""
        parent = self.at[entry.parent_id] if entry.parent_id is not None else None
        for number, fields in enumerate(self._fields(entry)):
            id = entry.id if not number else self.new()
            yield {"type": fields.pop("type"), "id": id, "parentId": parent, "timestamp": entry.timestamp} | fields
            parent = id
        self.at[entry.id] = parent

    def _fields(self, entry: ImportedEntry) -> Iterator[dict[str, Any]]:
        match entry:
            case MessageEntry():
                yield from self._messages(entry)
            case CompactionEntry(summary=summary, first_kept_entry_id=kept, tokens_before=tokens):
                yield {"type": "compaction", "summary": summary, "firstKeptEntryId": kept, "tokensBefore": tokens}
            case BranchSummary(from_id=left, summary=summary, details=details):
                yield {"type": "branch_summary", "fromId": left or "root", "summary": summary} | _without_none(
                    details=details
                )
            case CustomMessage(custom_type=kind, content=content, display=display, details=details):
                fields_written = {"customType": kind, "content": list(map(_part, content)), "display": display}
                yield {"type": "custom_message"} | fields_written | _without_none(details=details)
            case Custom(custom_type=kind, data=data):
                yield {"type": "custom", "customType": kind} | _without_none(data=data)
            case Label(target_id=target, label=label):
                yield {"type": "label", "targetId": target} | _without_none(label=label)
            case SessionInfo(name=name):
                yield {"type": "session_info"} | _without_none(name=name)
            case ModelChange(provider=provider, model_id=model):
                yield {"type": "model_change", "provider": provider, "modelId": model}
            case ThinkingLevelChange(thinking_level=level):
                if level == "max":  # pi has no level above xhigh
                    self._count_unsupported("thinking level above xhigh")
                    level = "xhigh"
                yield {"type": "thinking_level_change", "thinkingLevel": level}
            case ForeignEntry(type=kind, fields=fields) if kind != UNREADABLE:
                yield {"type": kind} | fields

    def _messages(self, entry: MessageEntry) -> Iterator[dict[str, Any]]:
        message, at = entry.message, _milliseconds(entry.timestamp)
        if message.role == "assistant":
            yield {"type": "message", "message": self._assistant(entry) | {"timestamp": at}}
            return
        parts = []
        for block in message.content:
            if isinstance(block, ToolResult):
                call_fields = {"toolCallId": block.tool_use_id, "toolName": self._calls.get(block.tool_use_id, "")}
                content = list(map(_part, block.content))
                result = (
                    {"role": "toolResult"}
                    | call_fields
                    | {"content": content, "isError": block.is_error, "timestamp": at}
                )
                yield {"type": "message", "message": result}
            elif isinstance(block, Text | Image):
                parts.append(_part(block))
            else:
                self._count_unsupported(type(block).__name__)
        if message.role == "system":
            yield {"type": "custom_message", "customType": SYSTEM, "content": parts, "display": False}
        elif parts or not message.content:
            yield {"type": "message", "message": {"role": "user", "content": parts, "timestamp": at}}

    def _assistant(self, entry: MessageEntry) -> dict[str, Any]:
        blocks, origin = entry.message.content, entry.origin
        signed, signer = next(
            ((block.provider, block.model) for block in blocks if isinstance(block, Thinking | Opaque)), ("", "")
        )
        provider = signed or (origin.provider if origin else "") or self._default_origin.provider
        stop = origin.stop if origin and origin.stop in STOPS else "toolUse" if tool_uses(entry.message) else "stop"
        return {
            "role": "assistant",
            "content": [part for block in blocks if (part := self._block(block, provider)) is not None],
            "api": (origin.api if origin else "") or self._default_origin.api,
            "provider": provider,
            "model": signer or (origin.model if origin else "") or self._default_origin.model,
            "usage": _usage(entry.usage or (origin.usage if origin else None) or Usage()),
            "stopReason": stop,
        }

    def _block(self, block: Block, provider: str) -> dict[str, Any] | None:
        match block:
            case Text() | Image():
                return _part(block)
            case Thinking(thinking, signature, owner):
                # A signature is valid only for the provider that created it.
                signed = {"thinkingSignature": signature} if signature and owner in ("", provider) else {}
                return {"type": "thinking", "thinking": thinking} | signed
            case ToolUse(id, name, input):
                return {"type": "toolCall", "id": id, "name": name, "arguments": input}
            case Opaque(owner, {"type": kind, "data": str(data)}) if kind == REDACTED and owner == provider:
                return {"type": "thinking", "thinking": "", "thinkingSignature": data, "redacted": True}
            case Opaque(owner, dict(raw)) if owner == provider:
                return {"type": "thinking", "thinking": "", "thinkingSignature": json.dumps(raw)}
        self._count_unsupported(type(block).__name__)
        return None

    def _count_unsupported(self, kind: str) -> None:
        self._unsupported[kind] = self._unsupported.get(kind, 0) + 1


def _part(block: Text | Image) -> dict[str, Any]:
    if isinstance(block, Text):
        return {"type": "text", "text": block.text}
    return {"type": "image", "data": block.data, "mimeType": block.media_type}


def _without_none(**fields: Any) -> dict[str, Any]:
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
