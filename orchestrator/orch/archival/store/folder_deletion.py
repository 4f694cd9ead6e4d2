"""Permanent deletion of archives from the archive folder of an Archiver.

A file of archives is rewritten line by line. The messages of deleted archives become deletion markers, so the numbers
of entries do not change. Each rewrite is atomic.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Collection, Sequence
from pathlib import Path
from typing import Any, BinaryIO

import msgspec
from msgspec import Struct

from orch_protocol.core.errors import StoreError
from orch_protocol.core.messages import Block, Message, Text
from orch_protocol.session.entries import Custom, MessageEntry
from orch_worker.conversation.receipt import Receipt
from orch_worker.conversation.stubs import deletion_marker, holder_of, holders_in, stub_text
from orch_worker.session.entry_codec import DECODE_ERRORS, MESSAGE_PREFIXES, encode_json
from orch_worker.session.log.atomic_rewrite import LogRewrite, rewriting
from orch_worker.session.log.log_reader import scan_lines

from ...tree.agents.agent_record import redacted_message
from .catalog import ArchiveRecord, StoredMessage

__all__ = ["ArchiveFile", "rewrite_archives"]

DAMAGED_LINE = b'{"type":"message",deleted}'


class ArchiveFile(Struct, frozen=True):
    """One file of archives. `ranges` maps the ids of its archives to their first and last offset, in order."""

    path: Path
    ranges: dict[str, tuple[int, int]]
    record_type: str
    summary_type: str
    digest: Callable[[ArchiveRecord, Sequence[StoredMessage]], str]


def rewrite_archives(
    file: ArchiveFile,
    records: dict[str, ArchiveRecord],
    chosen: Collection[str],
    keep_prompts: Collection[str],
    deleted_at: str,
) -> None:
    """Rewrite `file` without the content of the archives `chosen`, and without their records in other archives.

    `records` are all archives of the folder. `keep_prompts` are phases whose prompt stays, because it belongs to the
    turn. If nothing in `file` changes, keep it. After the return, the new file is on disk. Raises StoreError; in this
    case the file is unchanged.
    """
    try:
        content = file.path.read_bytes()
        if not any(id.encode() in content for id in chosen):
            return
        with open(file.path, "rb") as old, rewriting(file.path) as new:
            _Copy(file, records, set(chosen), set(keep_prompts), deleted_at).write(old, new)
    except OSError as error:
        raise StoreError(f"cannot delete archives in {file.path}: {error.strerror}") from error


class _Copy:
    def __init__(
        self,
        file: ArchiveFile,
        records: dict[str, ArchiveRecord],
        chosen: set[str],
        keep_prompts: set[str],
        deleted_at: str,
    ) -> None:
        self._file, self._records, self._deleted_at = file, records, deleted_at
        self._chosen, self._keep_prompts = chosen, keep_prompts
        self._starts = [start for start, _ in file.ranges.values()]
        self._ids = list(file.ranges)
        self._offset = 0
        """The offset of the archive that is being written, in the new file."""
        self._messages: list[Message] = []
        """The messages of this archive so far."""
        self._has_changed = False
        """Whether one of these messages has changed."""

    def write(self, old: BinaryIO, new: LogRewrite) -> None:
        for line in scan_lines(old):
            id = self._archive_at(line.offset)
            if id is not None and self._file.ranges[id][0] == line.offset:
                self._offset, self._messages, self._has_changed = new.end, [], False
            if line.sealed is not None:
                new.append(self._changed(line.sealed.object), line.sealed)
            elif id in self._chosen and line.data.startswith(MESSAGE_PREFIXES):
                new.replace_damaged(line.data, DAMAGED_LINE)  # its content is unknown
            else:
                new.keep(line.data)

    def _archive_at(self, offset: int) -> str | None:
        """Return the archive whose lines contain `offset`, None if there is none."""
        index = bisect_right(self._starts, offset) - 1
        if index < 0:
            return None
        id = self._ids[index]
        return id if offset < self._file.ranges[id][1] else None

    def _changed(self, object: bytes) -> bytes:
        try:
            if object.startswith(MESSAGE_PREFIXES):
                return self._changed_message(object)
            if object.startswith(b'{"type":"custom"'):
                return self._changed_custom(object)
        except (*DECODE_ERRORS, KeyError, TypeError, ValueError):
            pass  # a later version of orch wrote this line
        return object

    def _changed_message(self, object: bytes) -> bytes:
        entry = msgspec.json.decode(object, type=MessageEntry)
        changed = entry
        if entry.turn in self._chosen and not (entry.turn in self._keep_prompts and not self._messages):
            message = self._redacted(entry.message)
            changed = msgspec.structs.replace(entry, message=message, deleted=self._deleted_at)
        elif self._chosen.intersection(holders_in(entry.message)):
            content = tuple(map(self._without_record, entry.message.content))
            changed = msgspec.structs.replace(entry, message=Message(entry.message.role, content))
        self._messages.append(changed.message)
        if changed is entry:
            return object
        self._has_changed = True
        return encode_json(changed)

    def _redacted(self, message: Message) -> Message:
        """Return a deleted message. Records of members stay without text, so `unfold` shows each of their messages."""
        members = [block for block in message.content if isinstance(block, Text) and holder_of(block.text)]
        marker = redacted_message(message, self._deleted_at)
        if not self._chosen.issuperset(filter(None, (holder_of(block.text) for block in members))) or not members:
            return marker
        prompt = marker.content if message.role == "user" else ()
        return Message(message.role, (*prompt, *map(self._without_record, members)))

    def _without_record(self, block: Block) -> Block:
        holder = holder_of(block.text) if isinstance(block, Text) else None
        if holder is None or holder not in self._chosen:
            return block
        return Text(stub_text(self._records[holder].kind, holder, deletion_marker(self._deleted_at)))

    def _changed_custom(self, object: bytes) -> bytes:
        entry = msgspec.json.decode(object, type=Custom)
        data: Any = entry.data
        if entry.custom_type == self._file.summary_type and data["id"] in self._chosen:
            data = {"id": data["id"], "record": deletion_marker(self._deleted_at)}
        elif entry.custom_type == self._file.record_type:
            data = self._changed_record(msgspec.convert(data, ArchiveRecord))
        return object if data is entry.data else encode_json(msgspec.structs.replace(entry, data=data))

    def _changed_record(self, record: ArchiveRecord) -> ArchiveRecord:
        differences: Sequence[Any] = record.differences
        if record.id in self._chosen:
            differences = differences[:1] if record.id in self._keep_prompts else ()
            differences = (*differences, *[None] * (len(self._messages) - 1)) if differences else ()
            record = msgspec.structs.replace(
                record,
                task="",
                record=deletion_marker(self._deleted_at),
                answer="",
                receipt=Receipt(),
                summarized=False,
                deleted=self._deleted_at,
            )
        else:  # a difference repeats the text of a record only if the caller has changed this record
            differences = [None if any(id in str(each) for id in self._chosen) else each for each in differences]
        stored = [
            StoredMessage(*each)
            for each in zip(self._messages, differences or (None,) * len(self._messages), strict=False)
        ]
        record = msgspec.structs.replace(record, offset=self._offset, differences=tuple(differences))
        return (
            msgspec.structs.replace(record, sha256=self._file.digest(record, stored)) if self._has_changed else record
        )
