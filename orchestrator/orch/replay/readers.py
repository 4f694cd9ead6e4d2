"""Reading recorded sessions: our transcripts, pi's, an assistant's rows, plain messages and dialogues of them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any, Final

import msgspec

from orch_protocol.errors import ConfigError, DamagedError, ForeignFileError, StoreError
from orch_protocol.messages import Block, Image, Message, Text, Thinking, ToolResult, ToolUse, user
from orch_worker.backends.families import ratios_named
from orch_worker.estimate import Ratios

from ..archival.adapters import detect
from .recording import Compaction, Recorded, Recording

__all__ = ["read_recordings"]

MOST_BYTES: Final = 1 << 30
DIALOGUE_KEYS: Final = ("traj", "messages", "conversation", "history", "trajectory")
LOST: Final = "No result: it was interrupted."
_ERRORS: Final = (msgspec.MsgspecError, RecursionError, UnicodeError)


def read_recordings(path: Path) -> list[Recording]:
    """Return the conversations recorded in the file at `path`; its shape is found out.

    Raises ForeignFileError when it is none of the shapes known, DamagedError naming the line that cannot be read,
    StoreError when the file cannot.
    """
    try:
        if path.stat().st_size > MOST_BYTES:
            raise StoreError(f"cannot read {path}: it is larger than {MOST_BYTES >> 20} MiB")
        data = path.read_bytes()
    except OSError as error:
        raise StoreError(f"cannot read {path}: {error.strerror}") from error
    found = [_whole_calls(recording) for recording in _read(data, path) if recording.calls]
    if not found:
        raise ForeignFileError(f"{path} holds no conversation with an assistant's message in it")
    return found


def _whole_calls(recording: Recording) -> Recording:
    """Return `recording` with a result for each call that was cut off: no provider takes a request without."""
    found: list[Recorded] = []
    moved: list[int] = []
    open_calls: list[str] = []
    for each in (*recording.messages, None):
        results = [block.tool_use_id for block in each.message.content if isinstance(block, ToolResult)] if each else []
        if open_calls and not results and not (each and each.message.role == "assistant"):
            if each is not None:
                lost = tuple(ToolResult(id, (Text(LOST),), is_error=True) for id in open_calls)
                found.append(Recorded(Message("user", lost)))
            open_calls = []
        open_calls = [id for id in open_calls if id not in results]
        if each is not None:
            open_calls += [block.id for block in each.message.content if isinstance(block, ToolUse)]
            moved.append(len(found))
            found.append(each)
    moved.append(len(found))
    compactions = tuple(
        Compaction(moved[min(each.before, len(moved) - 1)], moved[min(each.kept, len(moved) - 1)], each.summary)
        for each in recording.compactions
    )
    return msgspec.structs.replace(recording, messages=tuple(found), compactions=compactions)


def _read(data: bytes, path: Path) -> list[Recording]:
    whole = _whole(data)
    if whole is not None:
        return _document(whole, path)
    rows = list(_lines(data, path))
    first = next((row for _, row in rows), {})
    if first.get("type") == "session":
        return [_session(rows, path)]
    if any("message" in row and ("uuid" in row or "sessionId" in row) for _, row in rows):
        return [_rows(rows, path)]
    if any(_messages_in(row) is not None for _, row in rows):
        return [
            _plain(messages, f"{path.name}:{line}", path)
            for line, row in rows
            if (messages := _messages_in(row)) is not None
        ]
    if any("role" in row for _, row in rows):
        return [_plain([row for _, row in rows], path.name, path)]
    raise _foreign(path)


def _whole(data: bytes) -> Any:
    """Return `data` as one JSON document, None when it is lines of them."""
    if data.lstrip()[:1] not in (b"[", b"{"):
        return None
    try:
        value = msgspec.json.decode(data)
    except _ERRORS:
        return None
    return None if isinstance(value, dict) and _messages_in(value) is None else value


def _lines(data: bytes, path: Path) -> Iterator[tuple[int, dict[str, Any]]]:
    for number, line in enumerate(data.splitlines(), 1):
        if not line.strip():
            continue
        try:
            row = msgspec.json.decode(line)
        except _ERRORS as error:
            if number == 1:
                raise _foreign(path) from error
            raise DamagedError(f"{path} line {number} is not JSON: {error}. Mend or remove the line") from error
        if not isinstance(row, dict):
            raise ForeignFileError(f"{path} line {number} is not an object: {line[:40]!r}")
        yield number, row


def _document(value: Any, path: Path) -> list[Recording]:
    if isinstance(value, dict):
        return [_plain(_messages_in(value) or [], path.name, path)]
    if all(isinstance(item, dict) and ("role" in item or "type" in item) for item in value) and value:
        return [_plain(value, path.name, path)]
    dialogues = [(number, _messages_in(item)) for number, item in enumerate(value)]
    found = [_plain(messages, f"{path.name}[{number}]", path) for number, messages in dialogues if messages is not None]
    if not found:
        raise _foreign(path)
    return found


def _messages_in(value: Any) -> list[Any] | None:
    """Return the messages of a dialogue, None when `value` is none."""
    if isinstance(value, dict) and "role" not in value:
        for key in DIALOGUE_KEYS:
            messages = value.get(key)
            if isinstance(messages, list) and any(isinstance(each, dict) and "role" in each for each in messages):
                return messages
    return value if isinstance(value, list) and value and _messages_in({"messages": value}) is not None else None


def _plain(messages: Sequence[Any], name: str, path: Path) -> Recording:
    format = detect(messages)
    found = []
    for place, raw in enumerate(messages):
        usage = raw.get("usage") if isinstance(raw, dict) else None
        try:
            found.append(Recorded(format.read(raw), *_usage(usage)))
        except ConfigError as error:
            raise ForeignFileError(f"{path}, message {place} of {name}: {error}") from error
    return Recording(name, f"{format.name} messages", tuple(found), ratios=format.ratios)


# Sessions: a header, then entries. Ours and pi's differ in the names inside a message.


def _session(rows: list[tuple[int, dict[str, Any]]], path: Path) -> Recording:
    ours = "c" in rows[0][1] and "s" in rows[0][1]
    places: dict[str, int] = {}
    by_row: list[int] = []
    found: list[Recorded] = []
    compactions: list[Compaction] = []
    ratios: Ratios = ratios_named("")
    for line, row in _branch(rows):
        by_row.append(line)
        at = len(found)
        if isinstance(row.get("id"), str):
            places[row["id"]] = at
        message = row.get("message")
        try:
            if row.get("type") == "message" and isinstance(message, dict):
                found.append(_ours(row) if ours else _pi(row, message))
                ratios = (
                    ratios_named(f"{message.get('api', '')} {message.get('model', '')}")
                    if message.get("api")
                    else ratios
                )
            elif row.get("type") == "custom_message":
                found.append(Recorded(Message("user", tuple(_pi_blocks(row.get("content"))))))
            elif row.get("type") == "compaction":
                compactions.append(_compaction(row, at, places, rows))
        except (KeyError, TypeError, ValueError, *_ERRORS) as error:
            raise DamagedError(f"{path} line {line} is no {row.get('type')} entry: {error!r}") from error
    return Recording(path.name, "orch session" if ours else "pi session", tuple(found), tuple(compactions), ratios)


def _branch(rows: list[tuple[int, dict[str, Any]]]) -> list[tuple[int, dict[str, Any]]]:
    """Return the rows from the root to the last entry; all of them where entries name no parent."""
    by_id = {row["id"]: (line, row) for line, row in rows if isinstance(row.get("id"), str) and "parentId" in row}
    if not by_id:
        return rows
    path: list[tuple[int, dict[str, Any]]] = []
    seen: set[str] = set()
    at = rows[-1][1].get("id")
    while isinstance(at, str) and at in by_id and at not in seen:
        seen.add(at)
        path.append(by_id[at])
        at = by_id[at][1]["parentId"]
    return path[::-1]


def _ours(row: dict[str, Any]) -> Recorded:
    message = msgspec.convert(row["message"], Message)
    told = row.get("usage") if message.role == "assistant" else None
    return Recorded(message, *_usage(told), _seconds(row.get("timestamp")))


def _pi(row: dict[str, Any], message: dict[str, Any]) -> Recorded:
    at = _seconds(row.get("timestamp"))
    match message["role"]:
        case "assistant":
            return Recorded(
                Message("assistant", tuple(_pi_blocks(message["content"]))), *_usage(message.get("usage")), at
            )
        case "toolResult":
            parts = tuple(block for block in _pi_blocks(message["content"]) if isinstance(block, (Text, Image)))
            result = ToolResult(message["toolCallId"], parts, message.get("isError") is True)
            return Recorded(Message("user", (result,)), at=at)
        case "bashExecution":
            return Recorded(user(f"Ran `{message['command']}`\n{message['output']}"), at=at)
        case "compactionSummary" | "branchSummary":
            return Recorded(user(message["summary"]), at=at)
        case _:
            return Recorded(Message("user", tuple(_pi_blocks(message["content"]))), at=at)


def _pi_blocks(content: Any) -> Iterator[Block]:
    for block in [{"type": "text", "text": content}] if isinstance(content, str) else content:
        match block:
            case {"type": "text", "text": str(text)}:
                yield Text(text)
            case {"type": "thinking", "thinking": str(text)}:
                yield Thinking(text)
            case {"type": "toolCall", "id": str(id), "name": str(name), "arguments": dict(arguments)}:
                yield ToolUse(id, name, arguments)
            case {"type": "image", "data": str(data)}:
                yield Image(str(block.get("mimeType", "image/png")), data)
            case _:
                raise ValueError(f"unknown block {block!r:.60}")


def _compaction(
    row: dict[str, Any], at: int, places: dict[str, int], rows: list[tuple[int, dict[str, Any]]]
) -> Compaction:
    if isinstance(row.get("firstKeptEntryId"), str):
        kept = places.get(row["firstKeptEntryId"], at)
    else:
        # Counts all rows of the file, of which only messages are messages.
        first = int(row["firstKeptEntryIndex"])
        kept = sum(each.get("type") == "message" for _, each in rows[:first])
    return Compaction(at, kept, str(row["summary"]))


# Rows: one a block, of which those with one message id are one reply.


def _rows(rows: list[tuple[int, dict[str, Any]]], path: Path) -> Recording:
    found: list[Recorded] = []
    compactions: list[Compaction] = []
    model, open_id, open_at = "", None, -1
    for line, row in rows:
        if row.get("type") == "system" and row.get("subtype") == "compact_boundary":
            compactions.append(Compaction(len(found), len(found), ""))
        message = row.get("message")
        if row.get("type") not in ("user", "assistant") or not isinstance(message, dict) or row.get("isSidechain"):
            continue
        try:
            read = detect([message]).read({"role": message["role"], "content": message["content"]})
        except (ConfigError, KeyError) as error:
            raise DamagedError(f"{path} line {line} is no message: {error}") from error
        each = Recorded(read, *_usage(message.get("usage")), _seconds(row.get("timestamp")))
        if row["type"] == "assistant" and message.get("id") is not None and message["id"] == open_id:
            found[open_at] = _joined(found[open_at], each)
            continue
        if row["type"] == "assistant":
            model, open_id, open_at = str(message.get("model", model)), message.get("id"), len(found)
        found.append(each)
    return Recording(path.name, "rows", tuple(found), tuple(compactions), ratios_named(model))


def _joined(first: Recorded, second: Recorded) -> Recorded:
    message = Message("assistant", first.message.content + second.message.content)
    output = max(first.output_tokens or 0, second.output_tokens or 0)
    return Recorded(message, first.input_tokens, output or None, first.at)


def _usage(usage: Any) -> tuple[int | None, int | None]:
    """Return input (cached ones included) and output tokens of a report, None for what it does not tell."""
    if not isinstance(usage, dict):
        return None, None
    # A total includes what was cached; parts are added up.
    whole = usage.get("prompt_tokens")
    names = (
        "input",
        "cacheRead",
        "cacheWrite",
        "input_tokens",
        "cache_read_input_tokens",
        "cache_creation_input_tokens",
        "cache_read_tokens",
        "cache_write_tokens",
    )
    parts = [whole] if isinstance(whole, int) else [usage.get(name) for name in names]
    given = sum(part for part in parts if isinstance(part, int))
    out = next((usage[name] for name in ("output", "output_tokens", "completion_tokens") if name in usage), None)
    return given or None, out if isinstance(out, int) and out > 0 else None


def _seconds(timestamp: Any) -> float | None:
    if isinstance(timestamp, str):
        try:
            return datetime.fromisoformat(timestamp).timestamp()
        except ValueError:
            return None
    return None


def _foreign(path: Path) -> ForeignFileError:
    return ForeignFileError(
        f"{path} is no recording that can be read: expected a session of ours or pi's, rows with a message each, "
        "or plain messages, as JSON or JSON lines"
    )
