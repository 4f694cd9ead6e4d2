"""Permanent deletion of archives. This module selects the lines of a session file to delete, and rewrites the file.

Every entry keeps its position, id and parent, so that the conversation does not change. Archives refer to their
messages by file offsets and hashes. The rewrite computes these offsets and hashes again.
"""

from __future__ import annotations

import mmap
import os
from array import array
from bisect import bisect_left
from collections.abc import Iterable, Sequence
from typing import Any, BinaryIO, Final, TypeAlias

import msgspec
from msgspec import Struct

from orch_protocol.core.archives import Collapse, RecordUpgrade, Span
from orch_protocol.core.errors import StoreError
from orch_protocol.core.messages import Block, Message, Text
from orch_protocol.core.taint import without_sources
from orch_protocol.core.workspace import WORKSPACE, KeepArtifact, WorkspaceSteps
from orch_protocol.hooks.stages import ACTED, HookActions
from orch_protocol.session.entries import (
    ArchiveEntry,
    BranchSummary,
    CompactionEntry,
    Custom,
    CustomMessage,
    Entry,
    MessageEntry,
    PhaseEntry,
    TaintEntry,
    TasksEntry,
    TurnEndEntry,
    UpgradeEntry,
)
from orch_worker.conversation.stubs import deletion_marker, holder_of, holders_in, stub_text
from orch_worker.session.archived_entries import read_spans, sha256_of
from orch_worker.session.entry_codec import (
    DECODE_ERRORS,
    MESSAGE_PREFIXES,
    decode_turn,
    encode_json,
    line_prefixes,
    read_entry,
)
from orch_worker.session.log.atomic_rewrite import LogRewrite, rewriting
from orch_worker.session.log.log_reader import scan_lines

from ...tree.agents.agent_record import redacted_message, redacted_reply
from .catalog import ArchiveRecord
from .session_archives import SessionArchives

__all__ = ["ArchivesToDelete", "ContentToDelete", "entries_to_delete", "rewrite_session_file"]

ArchivesToDelete: TypeAlias = str | frozenset[str]
"""The archives that were created at a time (ISO 8601) or earlier, or the archives with certain ids."""

(TASKS_PREFIX,) = line_prefixes(TasksEntry)
CONTENT_FIELDS: Final = frozenset({"answer", "differences"})
"""Fields of a record that contain content of messages, in addition to the text and the task of the record."""
DELETED_DAMAGED_LINE: Final = b'{"type":"message",deleted}'
"""The replacement for a message on a damaged line.

The replacement counts as a message, so the numbers of other messages do not change. It is not valid JSON, so the line
stays damaged.
"""


_CHANGEABLE_PREFIXES: Final = line_prefixes(
    TurnEndEntry | ArchiveEntry | UpgradeEntry | TasksEntry | TaintEntry | PhaseEntry | CompactionEntry | Custom
)
"""Entries, other than messages, that the rewrite may change."""


class ContentToDelete(Struct, frozen=True):
    """The content to delete.

    `records` are the archives. `lines` contains the offsets of the messages, and `bytes` is their total size.
    `has_leftovers` is True if an earlier deletion left data that can be removed now.
    """

    records: tuple[ArchiveRecord, ...] = ()
    lines: frozenset[int] = frozenset()
    bytes: int = 0
    has_leftovers: bool = False

    @property
    def due(self) -> bool:
        """Whether there is anything to delete."""
        return bool(self.records or self.lines or self.has_leftovers)


def entries_to_delete(archives: SessionArchives, which: ArchivesToDelete) -> ContentToDelete:
    """Return the content to delete together with the archives that `which` selects.

    The result includes the members of these archives. Messages that the conversation still shows are not deleted.
    """
    records = archives.records
    chosen = {
        record.id
        for record in records.values()
        if not record.deleted and (record.timestamp <= which if isinstance(which, str) else record.id in which)
    }
    pending = list(chosen)
    while pending:
        members = [id for id in records[pending.pop()].members if id in records and not records[id].deleted]
        pending += [id for id in members if id not in chosen]
        chosen.update(members)
    deleted = [record for record in records.values() if record.deleted]
    to_delete = [record for record in records.values() if record.id in chosen]
    visible, shown, briefed = archives.visible_offsets(), _shown_records(archives), archives.brief_records()
    damaged = {offset for offset, _ in archives.damaged}
    lines: dict[int, int] = {}
    for record in (*deleted, *to_delete):
        for (offset, _), chunk in zip(record.own, read_spans(archives.path, record.own), strict=True):
            for line in chunk.removesuffix(b"\n").split(b"\n"):
                # The content of a damaged line is unknown, so the line is deleted too.
                if (
                    (line.startswith(MESSAGE_PREFIXES) or offset in damaged)
                    and offset not in visible
                    and not _is_deleted(line)
                ):
                    lines[offset] = len(line) + 1
                offset += len(line) + 1
    has_leftovers = any(
        (record.id not in shown and record.record != deletion_marker(record.deleted))
        or (record.id not in briefed and bool(record.task))
        for record in deleted
    )
    return ContentToDelete(tuple(to_delete), frozenset(lines), sum(lines.values()), has_leftovers)


def _shown_records(archives: SessionArchives) -> set[str]:
    """Return the ids of the archives whose full record the conversation shows.

    An archive is left out if the conversation shows only its task, in a compaction summary.
    """
    with_task = {id for id in archives.brief_records() if archives.view.task(id)}
    return archives.visible_records() - with_task


def rewrite_session_file(archives: SessionArchives, content: ContentToDelete, deleted_at: str) -> None:
    """Rewrite the session file without the content in `content`. `deleted_at` is the time of the deletion.

    The replacement is atomic. When this function returns, the new file is on disk. The caller must have locked the
    folder. Raises StoreError; in this case nothing was deleted.
    """
    try:
        with open(archives.path, "rb") as file, rewriting(archives.path) as new_file:
            _FileCopy(archives, content, deleted_at, file, new_file).write()
            new_file.flush()
            _check_same_conversation(archives, new_file)
    except OSError as error:
        raise StoreError(f"cannot read {archives.path}: {error.strerror}") from error


def _check_same_conversation(archives: SessionArchives, new_file: LogRewrite) -> None:
    """Raise StoreError unless the new file contains the same conversation and the same archives as the old file."""
    new_archives = SessionArchives(archives.folder, new_file.path.name)
    new_archives.catch_up()
    expected, actual = (
        [(item.first, item.last, item.message) for item in each.view.items] for each in (archives, new_archives)
    )
    if expected != actual or list(archives.records) != list(new_archives.records):
        raise StoreError(
            f"{archives.path} would not contain the same conversation after the deletion; nothing was deleted"
        )


class _FileCopy:
    """Copies the old file to the new file line by line, without the deleted content."""

    def __init__(
        self, archives: SessionArchives, content: ContentToDelete, deleted_at: str, file: BinaryIO, new_file: LogRewrite
    ) -> None:
        self._content = content
        self._deleted_at = deleted_at
        self._file = file
        self._new_file = new_file
        self._shown, self._briefed = _shown_records(archives), archives.brief_records()
        self._summaries = archives.summaries
        self._kinds = {record.id: record.kind for record in archives.records.values()}
        self._deleted = {record.id: record.deleted for record in archives.records.values() if record.deleted}
        self._deleted |= {record.id: deleted_at for record in content.records}
        self._deleted_offsets = set(content.lines)
        """The offsets of deleted messages, up to the current line."""
        # The old and the new offset of each line, in ascending order.
        self._old_offsets, self._new_offsets = array("Q"), array("Q")
        self._task_list_offset = _last_line_offset(file, TASKS_PREFIX)
        """The offset of the current task list. The list is kept even if the turn that wrote it is deleted."""
        self._removed_names: set[str] = set()
        """The names of workspace objects that only deleted turns added."""
        self._ends_deleted: dict[str, bool] = {}
        """For each turn, whether the last message of the turn is deleted."""
        self._affected_turns = _turns_of_messages(file, content.lines)
        """Turns that contain messages to delete. Entries about such a turn can precede the messages of the turn."""

    def write(self) -> None:
        """Write the new file."""
        for line in scan_lines(self._file):
            self._old_offsets.append(line.offset)
            self._new_offsets.append(self._new_file.end)
            if line.sealed is not None:
                self._new_file.append(self._new_content(line.offset, line.sealed.object), line.sealed)
            elif line.offset in self._content.lines:
                self._new_file.replace_damaged(line.data, DELETED_DAMAGED_LINE)
            else:
                self._new_file.keep(line.data)

    def _new_content(self, offset: int, object: bytes) -> bytes:
        """Return the content of the new line. If the entry does not change, return the same bytes."""
        try:
            entry = self._change_entry(object, offset)
        except DECODE_ERRORS:
            return object  # a later version of orch wrote this entry
        return object if entry is None else encode_json(entry)

    def _change_entry(self, object: bytes, offset: int) -> Entry | None:
        """Return the changed entry. Return None if the entry does not change."""
        if object.startswith(MESSAGE_PREFIXES):
            return self._change_message(object, offset)
        if not object.startswith(_CHANGEABLE_PREFIXES):
            return None
        match entry := read_entry(object):
            case TurnEndEntry():
                return self._change_turn_end(entry)
            case ArchiveEntry():
                return self._change_archive(entry)
            case UpgradeEntry():
                return self._change_upgrade(entry)
            case TasksEntry():
                return self._change_tasks(entry, offset)
            case TaintEntry():
                return self._change_marks(entry)
            case PhaseEntry():
                return self._change_phase(entry)
            case CompactionEntry():
                return self._change_compaction(entry, offset)
            case Custom():
                return self._change_custom(entry)
        return None

    def _change_message(self, object: bytes, offset: int) -> MessageEntry | None:
        is_deleted, entry_turn = offset in self._content.lines, decode_turn(object)
        self._ends_deleted[entry_turn.turn] = is_deleted or bool(entry_turn.deleted)
        if entry_turn.deleted:
            self._deleted_offsets.add(offset)
        if not is_deleted:
            return None
        entry = read_entry(object)
        if isinstance(entry, (CustomMessage, BranchSummary)):  # the kind of the entry may reveal its content
            entry = MessageEntry(
                id=entry.id, parent_id=entry.parent_id, timestamp=entry.timestamp, message=entry.message
            )
        assert isinstance(entry, MessageEntry)
        return msgspec.structs.replace(
            entry, message=redacted_message(entry.message, self._deleted_at), deleted=self._deleted_at
        )

    def _change_turn_end(self, entry: TurnEndEntry) -> TurnEndEntry | None:
        if entry.deleted or not self._ends_deleted.get(entry.turn):
            return None
        return msgspec.structs.replace(
            entry, reply=redacted_reply(entry.reply, self._deleted_at), deleted=self._deleted_at
        )

    def _change_archive(self, entry: ArchiveEntry) -> ArchiveEntry | None:
        deleted_at = self._deleted.get(entry.collapse.holder, "")
        collapse = self._move_spans(entry.collapse)
        collapse = self._remove_content(collapse, entry.collapse.spans, deleted_at)
        new_entry = msgspec.structs.replace(entry, collapse=collapse, deleted=deleted_at)
        return new_entry if new_entry != entry else None

    def _change_tasks(self, entry: TasksEntry, offset: int) -> TasksEntry | None:
        if entry.deleted or offset == self._task_list_offset or not self._ends_deleted.get(entry.turn):
            return None
        return msgspec.structs.replace(entry, tasks=(), deleted=self._deleted_at)

    def _change_marks(self, entry: TaintEntry) -> TaintEntry | None:
        if entry.deleted or not self._ends_deleted.get(entry.turn):
            return None
        return msgspec.structs.replace(entry, marks=without_sources(entry.marks), deleted=self._deleted_at)

    def _change_phase(self, entry: PhaseEntry) -> PhaseEntry | None:
        if entry.deleted or entry.turn not in self._affected_turns:
            return None
        return msgspec.structs.replace(entry, note="", error="", deleted=self._deleted_at)

    def _change_custom(self, entry: Custom) -> Custom | None:
        """Remove workspace objects that a deleted turn added, and references to these objects in other entries."""
        if entry.custom_type == ACTED:
            return self._change_hook_actions(entry)
        if entry.custom_type != WORKSPACE:
            return None
        # Imported on demand, because most sessions have no such entry.
        from orch_worker.workspace.state import remove_artifacts

        try:
            steps = msgspec.convert(entry.data, WorkspaceSteps)
        except (msgspec.ValidationError, RecursionError):
            return None  # another program wrote this entry of an imported session
        if self._ends_deleted.get(steps.query):
            self._removed_names.update(step.artifact.name for step in steps.steps if isinstance(step, KeepArtifact))
            remaining = WorkspaceSteps(steps.query, deleted=steps.deleted or self._deleted_at)
        else:
            remaining = msgspec.structs.replace(steps, steps=remove_artifacts(steps.steps, self._removed_names))
        return msgspec.structs.replace(entry, data=msgspec.to_builtins(remaining)) if remaining != steps else None

    def _change_hook_actions(self, entry: Custom) -> Custom | None:
        """Remove the errors of hooks in a deleted turn, because these errors may quote the conversation."""
        actions = HookActions.of(entry.data)
        if actions is None or actions.deleted or actions.turn not in self._affected_turns:
            return None
        hook_actions = tuple(
            msgspec.structs.replace(each, error="deleted" if each.error else "") for each in actions.acts
        )
        remaining = msgspec.structs.replace(actions, acts=hook_actions, deleted=self._deleted_at)
        return msgspec.structs.replace(entry, data=msgspec.to_builtins(remaining))

    def _change_compaction(self, entry: CompactionEntry, offset: int) -> CompactionEntry | None:
        deleted_at = self._deleted.get(self._summaries.get(offset, ""), "")
        if entry.deleted or not deleted_at:
            return None
        # The task stays, because the agent still works on it.
        task = entry.details.get("task") if entry.writer and isinstance(entry.details, dict) else None
        details = {"task": task} if task else None
        return msgspec.structs.replace(entry, summary=deletion_marker(deleted_at), details=details, deleted=deleted_at)

    def _change_upgrade(self, entry: UpgradeEntry) -> UpgradeEntry | None:
        upgrade = entry.upgrade
        deleted_at = self._deleted.get(upgrade.holder, "")
        if not deleted_at or upgrade.holder in self._shown:
            return None
        stub = self._stub(upgrade.holder)
        return msgspec.structs.replace(entry, upgrade=RecordUpgrade(upgrade.holder, stub, upgrade.at_once))

    def _move_spans(self, collapse: Collapse) -> Collapse:
        """Return `collapse` with the new positions and the new hash of its messages."""
        try:
            spans, own = self._new_spans(collapse.spans), self._new_spans(collapse.record.get("own", ()))
        except (KeyError, TypeError, ValueError):
            return collapse  # the archive was never applied, so the spans are not line offsets
        hash = collapse.sha256
        # A wrong hash stays wrong, because damaged content must not become valid.
        if hash and sha256_of([self._old_bytes(span) for span in collapse.spans]) == hash:
            hash = sha256_of(self._new_file.read(spans))
        fields = {"spans": [list(span) for span in spans], "own": [list(span) for span in own], "sha256": hash}
        record = collapse.record | {key: value for key, value in fields.items() if value}
        return msgspec.structs.replace(collapse, spans=spans, sha256=hash, record=record)

    def _remove_content(self, collapse: Collapse, old_spans: Sequence[Span], deleted_at: str) -> Collapse:
        """Return `collapse` without the content of deleted archives. Content that the conversation shows remains.

        `old_spans` contains the spans of the archive's lines in the old file. `deleted_at` is the time at which the
        archive was deleted, "" if the archive is not deleted.
        """
        holder = collapse.holder
        hidden = bool(deleted_at) and holder not in self._shown
        # The prompt of a phase does not belong to the phase. The prompt is deleted with the turn.
        without_prompt = hidden and (
            collapse.kind != "phase" or not old_spans or old_spans[0][0] in self._deleted_offsets
        )
        messages = tuple(
            redacted_message(message, deleted_at)
            if hidden and holder not in holders_in(message)
            else Message(message.role, self._redact_blocks(message.content, records_only=without_prompt))
            for message in collapse.messages
        )
        if not deleted_at:
            return msgspec.structs.replace(collapse, messages=messages)
        task = collapse.task if holder in self._briefed else ""
        record: dict[str, Any] = {**collapse.record, "task": task}
        record.pop("receipt", None)  # it quotes the deleted messages, and an era would repeat the quotations
        if hidden:
            record = {key: value for key, value in record.items() if key not in CONTENT_FIELDS} | {
                "record": deletion_marker(deleted_at)
            }
        return msgspec.structs.replace(collapse, task=task, messages=messages, record=record)

    def _redact_blocks(self, blocks: Iterable[Block], *, records_only: bool) -> tuple[Block, ...]:
        """Return `blocks` with deletion markers in place of the records of deleted archives.

        If `records_only` is True, return only the records.
        """
        kept_blocks: list[Block] = []
        for block in blocks:
            holder = holder_of(block.text) if isinstance(block, Text) else None
            if holder in self._deleted and holder not in self._shown:
                kept_blocks.append(Text(self._stub(holder)))
            elif holder or not records_only:
                kept_blocks.append(block)
        return tuple(kept_blocks)

    def _stub(self, holder: str) -> str:
        return stub_text(self._kinds[holder], holder, deletion_marker(self._deleted[holder]))

    def _old_bytes(self, span: Span) -> bytes:
        offset, length = span
        return os.pread(self._file.fileno(), length, offset)

    def _new_spans(self, spans: Iterable[Sequence[int]]) -> tuple[Span, ...]:
        new_spans = []
        for offset, length in spans:
            start, end = self._new_offset(offset), self._new_offset(offset + length)
            new_spans.append((start, end - start))
        return tuple(new_spans)

    def _new_offset(self, offset: int) -> int:
        """Return the new offset of the line at `offset`. Raises KeyError if no line begins at `offset`."""
        index = bisect_left(self._old_offsets, offset)
        if index == len(self._old_offsets) or self._old_offsets[index] != offset:
            raise KeyError(offset)
        return self._new_offsets[index]


def _turns_of_messages(file: BinaryIO, lines: Iterable[int]) -> set[str]:
    """Return the turns that contain the messages at the offsets `lines`. Unreadable messages are skipped."""
    turns = set()
    for offset in lines:
        file.seek(offset)
        try:
            turns.add(decode_turn(file.readline()).turn)
        except DECODE_ERRORS:
            pass
    file.seek(0)
    return turns


def _last_line_offset(file: BinaryIO, prefix: bytes) -> int:
    """Return the offset of the last line that starts with `prefix`, 0 if there is no such line."""
    with mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ) as data:
        return data.rfind(b"\n" + prefix) + 1


def _is_deleted(line: bytes) -> bool:
    try:
        return line.startswith(DELETED_DAMAGED_LINE[:-1]) or bool(decode_turn(line).deleted)
    except DECODE_ERRORS:
        return False
