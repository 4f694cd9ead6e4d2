"""Transcripts of a coding assistant: rows, of which those with one message id are one reply.

Rows name their parents. Rows that are no messages stand between them; the results of calls made at once follow each
its own call, though all of them belong to one message. What is made of them is a tree of messages.
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

from ...archival.adapters import ROWS, format_named
from .conversation import SHAPE_ERRORS, ImportedSession, Reading, Told, fitting
from .json_lines import Row, rows_of, text_of_file
from .pi import entry_time, usage_of

__all__ = ["is_row", "read_rows_of"]

SAYING: Final = ("user", "assistant")
TITLES: Final = {"custom-title": "customTitle", "ai-title": "aiTitle", "summary": "summary"}
"""Rows that name the conversation, and where; the first kind beats the others."""
MOST_BELOW: Final = 256


def is_row(row: dict[str, Any]) -> bool:
    """Whether this is a message among rows."""
    return "message" in row and ("uuid" in row or "sessionId" in row)


def read_rows_of(rows: list[Row], reading: Reading) -> ImportedSession:
    """Return the conversation in `rows`, with those of its subagents, which are in files beside it or among the rows.

    Raises DamagedError.
    """
    below: dict[str, list[Row]] = {}
    main: list[Row] = []
    sides = {str(row.get("uuid")): str(row.get("agentId") or "") for _, row in rows if row.get("isSidechain")}
    for line, row in rows:
        if row.get("isSidechain"):
            below.setdefault(_side(row, sides), []).append((line, row))
        else:
            main.append((line, row))
    if not any(row.get("type") in SAYING for _, row in main):
        main, below = rows, {}  # a subagent's own file
    found = _Conversation(reading, reading.path.name).read(main)
    inside = [_Conversation(reading, f"{reading.path.name} {id}".strip()).read(each) for id, each in below.items()]
    beside = list(_files_below(reading, main))
    return msgspec.structs.replace(found, below=(*inside, *beside), repairs=reading.repairs)


def _side(row: dict[str, Any], sides: dict[str, str]) -> str:
    """Return which of the subagents' conversations a row belongs to; a row that has no parent begins one."""
    if row.get("agentId"):
        return str(row["agentId"])
    parent = row.get("parentUuid")
    uuid = str(row.get("uuid"))
    sides[uuid] = sides.get(str(parent), "") or uuid
    return sides[uuid]


def _files_below(reading: Reading, rows: list[Row]) -> Iterator[ImportedSession]:
    """Yield the conversations of subagents that are in files of their own. One that cannot be read is reported."""
    session = next((row["sessionId"] for _, row in rows if isinstance(row.get("sessionId"), str)), "")
    if not session or any(row.get("agentId") for _, row in rows):
        return
    folder = reading.path.with_suffix("") / "subagents"
    places = [*sorted(folder.glob("agent-*.jsonl")), *sorted(reading.path.parent.glob("agent-*.jsonl"))]
    for place in places[:MOST_BELOW]:
        if place == reading.path:
            continue
        inner = Reading(place, repair=reading.repair)
        try:
            theirs = rows_of(text_of_file(place.read_bytes(), inner), inner)
            if any(row.get("sessionId") not in (session, None) for _, row in theirs):
                continue  # of another conversation in the same folder
            found = _Conversation(inner, place.name).read(theirs)
        except (OrchError, OSError) as error:
            reading.mended(f"the subagent in {place.name} is left out: {error}")
            continue
        for each in found.repairs:
            reading.mended(f"{place.name}: {each}")
        yield found


class _Conversation:
    """One conversation among rows."""

    def __init__(self, reading: Reading, name: str) -> None:
        self._reading = reading
        self._name = name
        self._format = format_named(ROWS)
        self._entries: list[Told] = []
        self._places: dict[str, int] = {}
        self._at: dict[str, str | None] = {}
        """Behind which entry a row stands, by the row's id: its own, or that of the last message before it."""
        self._replies: dict[str, str] = {}
        """For each result of a call, the reply that made the call; for a reply with results, itself."""
        self._last: dict[str, str] = {}
        """The last result so far of each reply that has some."""
        self._open: tuple[str, str] = ("", "")
        """The id of the last reply, and its entry's."""
        self._tip: str | None = None
        self._time = "1970-01-01T00:00:00.000Z"
        self._titles: dict[str, str] = {}
        self._others: dict[str, int] = {}
        self._model = ""
        self._calls: dict[str, str] = {}
        """The entry of each call."""

    def read(self, rows: list[Row]) -> ImportedSession:
        """Return the conversation. Raises DamagedError, naming the line."""
        linked = any("parentUuid" in row for _, row in rows)
        seen: dict[str, int] = {}
        known = {str(row["uuid"]) for _, row in rows if "uuid" in row}
        for line, row in rows:
            self._time = entry_time(row.get("timestamp")) or self._time
            uuid = row["uuid"] if isinstance(row.get("uuid"), str) and linked else ""
            if uuid and uuid in seen:
                self._reading.fault(line, f"has the id of line {seen[uuid]}", "it is left out")
                continue
            parent = self._parent(line, row, known) if linked else self._tip
            if uuid:
                seen[uuid] = line
            at = self._take(line, row, parent)
            if uuid:
                self._at[uuid] = at
        title = next((self._titles[kind] for kind in TITLES if kind in self._titles), "")
        if title:
            self._append(SessionInfo(id=self._id(), parent_id=self._tip, timestamp=self._time, name=title))
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
        if not self._others:
            return ()
        kinds = ", ".join(f"{count} {kind[:40]}" for kind, count in sorted(self._others.items()))
        return (f"rows that are no messages are left out: {kinds}",)

    def _parent(self, line: int, row: dict[str, Any], known: set[str]) -> str | None:
        """Return the entry that a row stands behind."""
        parent = row.get("parentUuid") or row.get("logicalParentUuid")
        if parent is None:
            # The first message; or a row beside the conversation, which has no parent and stands where it stands.
            return None if row.get("type") in SAYING and "parentUuid" in row else self._tip
        if not isinstance(parent, str):
            self._reading.fault(line, f"follows {parent!r:.40}, which is no id", "it is put where it stands")
            return self._tip
        if parent in self._at:
            at = self._at[parent]
            return self._behind(at) if at is not None else None
        if parent == row.get("uuid") or parent in known:
            self._reading.fault(
                line, "follows itself or a row that comes after it: a circle", "it is put where it stands"
            )
        else:
            self._reading.mended(f"line {line} follows a row that is not in the file: it is put where it stands")
        return self._tip

    def _behind(self, at: str) -> str:
        """Return what follows `at`: the results of one reply follow each other."""
        return self._last.get(self._replies.get(at, ""), at)

    def _take(self, line: int, row: dict[str, Any], parent: str | None) -> str | None:
        """Take a row in, and return the entry that rows behind it follow."""
        kind, message = row.get("type"), row.get("message")
        if kind == "system" and row.get("subtype") == "compact_boundary":
            return self._compaction(row, parent)
        if kind in TITLES and isinstance(title := row.get(TITLES[kind]), str) and title.strip():
            self._titles[kind] = title
            return parent
        if kind not in SAYING or not isinstance(message, dict):
            if kind in SAYING:
                self._reading.fault(line, f"is of type {kind} and holds no message", "it is left out")
            name = kind if isinstance(kind, str) else "untyped"
            self._others[name] = self._others.get(name, 0) + 1
            return parent
        try:
            read = fitting(self._format.read({"role": message["role"], "content": message["content"]}))
        except (ConfigError, *SHAPE_ERRORS) as error:
            self._reading.fault(line, f"is no message: {error}", "it is left out")
            return parent
        if row.get("isCompactSummary") and (place := self._compacted(parent)) is not None:
            entry = self._entries[place]
            assert isinstance(entry, CompactionEntry)
            self._entries[place] = msgspec.structs.replace(entry, summary=text_of(read))
            return entry.id
        if kind == "assistant":
            return self._reply(message, read, parent)
        calls = [self._calls.get(block.tool_use_id) for block in read.content if isinstance(block, ToolResult)]
        reply = next((call for call in calls if call is not None), None)
        made = self._message(read, parent if reply is None else self._behind(reply), None)
        if reply is not None:
            self._replies[reply] = self._replies[made] = reply
            self._last[reply] = made
        return made

    def _reply(self, message: dict[str, Any], read: Message, parent: str | None) -> str:
        id = message.get("id")
        self._model = str(message.get("model") or self._model)
        said = {key: message.get(key) for key in ("model", "stop_reason")}
        model, stop = (value if isinstance(value, str) else "" for value in said.values())
        origin = Origin(model=model, stop=stop, usage=usage_of(message.get("usage")))
        if isinstance(id, str) and id == self._open[0]:
            made = self._open[1]
            place = self._places[made]
            entry = self._entries[place]
            assert isinstance(entry, MessageEntry)
            whole = Message("assistant", entry.message.content + read.content)
            # What is told of a reply grows from row to row.
            told = max((entry.origin, origin), key=lambda each: each.usage.output_tokens if each and each.usage else 0)
            self._entries[place] = msgspec.structs.replace(entry, message=whole, origin=told)
        else:
            made = self._message(read, parent, origin)
            self._open = (id, made) if isinstance(id, str) else ("", "")
        self._calls.update((call.id, made) for call in tool_uses(read))
        return made

    def _compaction(self, row: dict[str, Any], parent: str | None) -> str:
        told = row.get("compactMetadata")
        tokens = told.get("preTokens") if isinstance(told, dict) else None
        id = self._id()
        before = parent if parent is not None else self._tip
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
        """Return where the compaction is that the entry `parent` is, if it is one that has no summary yet."""
        place = self._places.get(parent or "")
        entry = self._entries[place] if place is not None else None
        return place if isinstance(entry, CompactionEntry) and not entry.summary else None

    def _message(self, message: Message, parent: str | None, origin: Origin | None) -> str:
        id = self._id()
        self._append(MessageEntry(id=id, parent_id=parent, timestamp=self._time, message=message, origin=origin))
        return id

    def _append(self, entry: Told) -> None:
        self._places[entry.id] = len(self._entries)
        self._entries.append(entry)
        self._tip = entry.id

    def _id(self) -> str:
        return new_entry_id(self._places)
