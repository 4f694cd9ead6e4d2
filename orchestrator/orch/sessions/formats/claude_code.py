"""Read transcripts of Claude Code. A transcript consists of rows, and all rows with the same message id form one reply.

Each row names its parent. The parent may be a row that is not a message. The results of parallel calls are separate
rows. Each of these rows is a child of its own call, although the results belong to one message. The reader converts the
rows to a tree of messages.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

import msgspec

from orch_protocol.core.errors import ConfigError, OrchError
from orch_protocol.core.ids import new_entry_id
from orch_protocol.core.messages import Message, ToolResult, text_of, tool_uses
from orch_protocol.session.entries import CompactionEntry, MessageEntry, Origin, SessionInfo
from orch_worker.backends.model_families import ratios_named

from ...archival.adapters import TRANSCRIPT_FORMAT, format_named
from .conversation import SHAPE_ERRORS, ImportedEntry, ImportedSession, Reading, check_blocks
from .json_lines import Row, rows_of, text_of_file
from .pi import entry_time, usage_of

__all__ = ["is_row", "read_claude_code"]

MESSAGE_TYPES: Final = ("user", "assistant")
TITLES: Final = {"custom-title": "customTitle", "ai-title": "aiTitle", "summary": "summary"}
"""The row types that contain a title, and the key of the title. If there are several titles, the first type counts."""
MAX_SUBAGENT_FILES: Final = 256


def is_row(row: dict[str, Any]) -> bool:
    """Return whether `row` is a message of a transcript."""
    return "message" in row and ("uuid" in row or "sessionId" in row)


def read_claude_code(rows: list[Row], reading: Reading) -> ImportedSession:
    """Return the conversation in `rows`, with the conversations of its subagents. Raises DamagedError.

    The rows of a subagent are in `rows` or in a separate file.
    """
    subagent_rows: dict[str, list[Row]] = {}
    main: list[Row] = []
    subagent_ids = {str(row.get("uuid")): str(row.get("agentId") or "") for _, row in rows if row.get("isSidechain")}
    for line, row in rows:
        if row.get("isSidechain"):
            subagent_rows.setdefault(_subagent_id(row, subagent_ids), []).append((line, row))
        else:
            main.append((line, row))
    if not any(row.get("type") in MESSAGE_TYPES for _, row in main):
        main, subagent_rows = rows, {}  # this is the file of a subagent
    found = _Conversation(reading, reading.path.name).read(main)
    inline_subagents = [
        _Conversation(reading, f"{reading.path.name} {id}".strip()).read(each) for id, each in subagent_rows.items()
    ]
    subagent_files = list(_read_subagent_files(reading, main))
    return msgspec.structs.replace(found, subagents=(*inline_subagents, *subagent_files), repairs=reading.repairs)


def _subagent_id(row: dict[str, Any], subagent_ids: dict[str, str]) -> str:
    """Return the id of the subagent that `row` belongs to. A row without a parent begins a new subagent."""
    if row.get("agentId"):
        return str(row["agentId"])
    parent = row.get("parentUuid")
    uuid = str(row.get("uuid"))
    subagent_ids[uuid] = subagent_ids.get(str(parent), "") or uuid
    return subagent_ids[uuid]


def _read_subagent_files(reading: Reading, rows: list[Row]) -> Iterator[ImportedSession]:
    """Yield the conversations of subagents in separate files. A file that cannot be read is reported."""
    session = next((row["sessionId"] for _, row in rows if isinstance(row.get("sessionId"), str)), "")
    if not reading.subagent_files or not session or any(row.get("agentId") for _, row in rows):
        return
    folder = reading.path.with_suffix("") / "subagents"
    files = [*sorted(folder.glob("agent-*.jsonl")), *sorted(reading.path.parent.glob("agent-*.jsonl"))]
    for file in files[:MAX_SUBAGENT_FILES]:
        if file == reading.path:
            continue
        inner = Reading(file, repair=reading.repair)
        try:
            subagent_rows = rows_of(text_of_file(file.read_bytes(), inner), inner)
            if any(row.get("sessionId") not in (session, None) for _, row in subagent_rows):
                continue  # this file belongs to another conversation in the same folder
            found = _Conversation(inner, file.name).read(subagent_rows)
        except (OrchError, OSError) as error:
            reading.add_repair(f"the subagent in {file.name} is left out: {error}")
            continue
        for each in found.repairs:
            reading.add_repair(f"{file.name}: {each}")
        yield found


class _Conversation:
    """Builds one conversation from rows."""

    def __init__(self, reading: Reading, name: str) -> None:
        self._reading = reading
        self._name = name
        self._format = format_named(TRANSCRIPT_FORMAT)
        self._entries: list[ImportedEntry] = []
        self._indexes: dict[str, int] = {}
        self._entry_of_row: dict[str, str | None] = {}
        """For each row id, the entry that children of the row follow.

        This is the row's own entry, or the last message before the row.
        """
        self._replies: dict[str, str] = {}
        """For each entry with a tool result, the reply that contains the call.
        For a reply with results, the reply itself.
        """
        self._last: dict[str, str] = {}
        """For each reply with results, the last result so far."""
        self._open: tuple[str, str] = ("", "")
        """The message id of the last reply, and the id of its entry."""
        self._last_entry: str | None = None
        self._time = "1970-01-01T00:00:00.000Z"
        self._titles: dict[str, str] = {}
        self._skipped_types: dict[str, int] = {}
        self._model = ""
        self._calls: dict[str, str] = {}
        """For each call, by id, the entry that contains the call."""

    def read(self, rows: list[Row]) -> ImportedSession:
        """Return the conversation in `rows`. Raises DamagedError, which names the line."""
        linked = any("parentUuid" in row for _, row in rows)
        seen: dict[str, int] = {}
        known = {str(row["uuid"]) for _, row in rows if "uuid" in row}
        for line, row in rows:
            self._time = entry_time(row.get("timestamp")) or self._time
            uuid = row["uuid"] if isinstance(row.get("uuid"), str) and linked else ""
            if uuid and uuid in seen:
                self._reading.handle_fault(line, f"has the id of line {seen[uuid]}", "it is left out")
                continue
            parent = self._parent(line, row, known) if linked else self._last_entry
            if uuid:
                seen[uuid] = line
            at = self._add_row(line, row, parent)
            if uuid:
                self._entry_of_row[uuid] = at
        title = next((self._titles[kind] for kind in TITLES if kind in self._titles), "")
        if title:
            self._append(SessionInfo(id=self._id(), parent_id=self._last_entry, timestamp=self._time, name=title))
        cwd = next((row["cwd"] for _, row in rows if isinstance(row.get("cwd"), str)), "")
        return ImportedSession(
            name=self._name,
            shape="transcript rows",
            entries=tuple(self._entries),
            title=title,
            cwd=cwd,
            ratios=ratios_named(self._model),
            repairs=self._reading.repairs,
            notes=self._notes(),
        )

    def _notes(self) -> tuple[str, ...]:
        if not self._skipped_types:
            return ()
        kinds = ", ".join(f"{count} {kind[:40]}" for kind, count in sorted(self._skipped_types.items()))
        return (f"rows that are not messages are left out: {kinds}",)

    def _parent(self, line: int, row: dict[str, Any], known: set[str]) -> str | None:
        """Return the entry before `row`. Return None for the first entry."""
        parent = row.get("parentUuid") or row.get("logicalParentUuid")
        if parent is None:
            # This is the first message, or a row outside the conversation. Such a row keeps its position in the file.
            return None if row.get("type") in MESSAGE_TYPES and "parentUuid" in row else self._last_entry
        if not isinstance(parent, str):
            self._reading.handle_fault(
                line, f"follows {parent!r:.40}, which is not an id", "it keeps its position in the file"
            )
            return self._last_entry
        if parent in self._entry_of_row:
            at = self._entry_of_row[parent]
            return self._last_result_of(at) if at is not None else None
        if parent == row.get("uuid") or parent in known:
            self._reading.handle_fault(
                line, "follows itself or a later row, which is a cycle", "it keeps its position in the file"
            )
        else:
            self._reading.add_repair(
                f"line {line} follows a row that is not in the file; it keeps its position in the file"
            )
        return self._last_entry

    def _last_result_of(self, at: str) -> str:
        """Return the last result of the reply that the result `at` belongs to.

        The results of a reply follow each other.
        """
        return self._last.get(self._replies.get(at, ""), at)

    def _add_row(self, line: int, row: dict[str, Any], parent: str | None) -> str | None:
        """Process a row. Return the entry that the children of the row follow."""
        kind, message = row.get("type"), row.get("message")
        if kind == "system" and row.get("subtype") == "compact_boundary":
            return self._compaction(row, parent)
        if kind in TITLES and isinstance(title := row.get(TITLES[kind]), str) and title.strip():
            self._titles[kind] = title
            return parent
        if kind not in MESSAGE_TYPES or not isinstance(message, dict):
            if kind in MESSAGE_TYPES:
                self._reading.handle_fault(line, f"is of type {kind} and contains no message", "it is left out")
            name = kind if isinstance(kind, str) else "untyped"
            self._skipped_types[name] = self._skipped_types.get(name, 0) + 1
            return parent
        try:
            fields = {"role": message["role"], "content": message["content"], "model": message.get("model")}
            read = check_blocks(self._format.read(fields))
        except (ConfigError, *SHAPE_ERRORS) as error:
            self._reading.handle_fault(line, f"is not a message: {error}", "it is left out")
            return parent
        if row.get("isCompactSummary") and (index := self._compacted(parent)) is not None:
            entry = self._entries[index]
            assert isinstance(entry, CompactionEntry)
            self._entries[index] = msgspec.structs.replace(entry, summary=text_of(read))
            return entry.id
        if kind == "assistant":
            return self._reply(message, read, parent)
        calls = [self._calls.get(block.tool_use_id) for block in read.content if isinstance(block, ToolResult)]
        reply = next((call for call in calls if call is not None), None)
        made = self._message(read, parent if reply is None else self._last_result_of(reply), None)
        if reply is not None:
            self._replies[reply] = self._replies[made] = reply
            self._last[reply] = made
        return made

    def _reply(self, message: dict[str, Any], read: Message, parent: str | None) -> str:
        id = message.get("id")
        self._model = str(message.get("model") or self._model)
        details = {key: message.get(key) for key in ("model", "stop_reason")}
        model, stop = (value if isinstance(value, str) else "" for value in details.values())
        origin = Origin(model=model, stop=stop, usage=usage_of(message.get("usage")))
        if isinstance(id, str) and id == self._open[0]:
            made = self._open[1]
            index = self._indexes[made]
            entry = self._entries[index]
            assert isinstance(entry, MessageEntry)
            joined = Message("assistant", entry.message.content + read.content)
            # The usage of a reply grows from row to row.
            best_origin = max(
                (entry.origin, origin), key=lambda each: each.usage.output_tokens if each and each.usage else 0
            )
            self._entries[index] = msgspec.structs.replace(entry, message=joined, origin=best_origin)
        else:
            made = self._message(read, parent, origin)
            self._open = (id, made) if isinstance(id, str) else ("", "")
        self._calls.update((call.id, made) for call in tool_uses(read))
        return made

    def _compaction(self, row: dict[str, Any], parent: str | None) -> str:
        metadata = row.get("compactMetadata")
        tokens = metadata.get("preTokens") if isinstance(metadata, dict) else None
        id = self._id()
        before = parent if parent is not None else self._last_entry
        entry = CompactionEntry(
            id=id,
            parent_id=before,
            timestamp=self._time,
            summary="",
            first_kept_entry_id=id,
            tokens_before=tokens if isinstance(tokens, int) else 0,
        )
        self._append(entry)
        return id

    def _compacted(self, parent: str | None) -> int | None:
        """Return the index of the compaction entry `parent` if this entry has no summary yet."""
        index = self._indexes.get(parent or "")
        entry = self._entries[index] if index is not None else None
        return index if isinstance(entry, CompactionEntry) and not entry.summary else None

    def _message(self, message: Message, parent: str | None, origin: Origin | None) -> str:
        id = self._id()
        self._append(MessageEntry(id=id, parent_id=parent, timestamp=self._time, message=message, origin=origin))
        return id

    def _append(self, entry: ImportedEntry) -> None:
        self._indexes[entry.id] = len(self._entries)
        self._entries.append(entry)
        self._last_entry = entry.id

    def _id(self) -> str:
        return new_entry_id(self._indexes)
