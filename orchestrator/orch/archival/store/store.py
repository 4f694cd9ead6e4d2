"""The folder of archived messages. The folder contains append-only files. Each archive is one atomic write.

An archive consists of one entry for each message, followed by the *record*, which is an entry that refers to these
messages. Messages without a record are ignored. When a file reaches its maximum size, a new file is started. All other
data, including the search index, is derived from these files.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Collection, Sequence
from hashlib import sha256
from pathlib import Path
from typing import Any, Final

import msgspec

from orch_protocol.core.archives import Span
from orch_protocol.core.errors import DamagedError, StoreError
from orch_protocol.core.ids import new_id
from orch_protocol.core.messages import Message
from orch_protocol.core.text import scrub
from orch_protocol.session.entries import Custom, MessageEntry, SessionHeader
from orch_worker.context.holder_query import DAMAGED
from orch_worker.conversation.stubs import stub_text
from orch_worker.session.archived_entries import lines_in
from orch_worker.session.entry_codec import DECODE_ERRORS, SESSION_HEADER, encode_json, timestamp
from orch_worker.session.log.append_log import AppendLog
from orch_worker.session.log.atomic_rewrite import discard_unfinished
from orch_worker.session.log.lock import FolderLock
from orch_worker.session.log.log_reader import load
from orch_worker.system.files import io_error

from .catalog import ArchivedMessage, ArchiveRecord, SearchableCatalog, StoredMessage
from .folder_deletion import ArchiveFile, rewrite_archives
from .unfold import unfold

__all__ = ["ArchiveStore"]

SEGMENT_BYTES: Final = 32 << 20
SEGMENT_NAME: Final = re.compile(r"archive-([0-9]+)\.jsonl")
"""The name of a file of archives. Other files in the folder, such as copies, are not read."""
RECORD: Final = "archive"
SUMMARY: Final = "archive_summary"

_messages = msgspec.json.Decoder(MessageEntry)
_customs = msgspec.json.Decoder(Custom)


class ArchiveStore(SearchableCatalog):
    """An open folder of archives.

    No other process writes to the folder until `close`, unless the folder was opened with `read`.
    """

    def __init__(self, lock: FolderLock | None, folder: Path) -> None:
        super().__init__(folder)
        self.notes: list[str] = []
        """Damage that was found when the files were opened, and late summaries that could not be stored, one line each.
        """
        self.messages_shown: Sequence[Message] | None = None
        """The conversation after the last fold. None before the first fold."""
        self.has_summaries = False
        """Whether the record of an archive is a summary by a model."""
        self._lock = lock
        self._closed = False
        self._log: AppendLog | None = None
        self._segment = 0
        self._ids_by_digest: dict[str, str] = {}
        self._offsets: dict[int, list[int]] = {}
        self._receipts: dict[str, str] = {}
        """For each archive with a late summary, the text of its record before the summary."""

    @classmethod
    def open(cls, folder: Path) -> ArchiveStore:
        """Lock `folder` and read its archives. Create `folder` if it does not exist.

        Raises LockedError if another process has the folder open. Raises ForeignFileError for a file of another
        program; this file stays unchanged. Raises StoreError if the folder cannot be used.
        """
        archive = cls(FolderLock.acquire(folder), folder)
        try:
            archive._read()
        except BaseException:
            archive.close()
            raise
        return archive

    @classmethod
    def read(cls, folder: Path) -> ArchiveStore:
        """Read the archives of `folder` without a lock. Nothing can be added, and no archive may have members.

        Hits have numbers of entries that count the messages of all archives together. Raises StoreError.
        """
        archive = cls(None, folder)
        archive.numbered_together = True
        archive._read()
        return archive

    def close(self) -> None:
        """Sync all files and unlock the folder. Further calls do nothing."""
        log, self._log, self._closed = self._log, None, True
        try:
            if log is not None:
                log.close()
        finally:
            if self._lock is not None:
                self._lock.release()

    def add(self, record: ArchiveRecord, messages: Sequence[StoredMessage], *, repeat: bool = False) -> ArchiveRecord:
        """Store `messages` and the metadata in `record` in one write. Return the complete record.

        When this method returns, the archive survives the death of the process, and after `sync` or `close` also a
        power loss. If the same messages were archived before, return the existing archive, unless `repeat` is True. The
        time of the archive is `record.timestamp`, or the current time. Raises StoreError; in this case nothing was
        stored.
        """
        self.check_open()
        differences = tuple(message.difference for message in messages)
        digest = _digest(record, messages)
        if not repeat and (existing := self._ids_by_digest.get(digest)):
            return self.records[existing]
        log = self._writable()
        id, time = new_id(), record.timestamp or timestamp()
        complete = msgspec.structs.replace(
            record,
            id=id,
            number=len(self.records) + 1,
            count=len(messages),
            timestamp=time,
            differences=differences if any(differences) else (),
            segment=self._segment,
            offset=log.end,
            sha256=digest,
        )
        lines, parent_id = [], None
        for index, message in enumerate(messages):
            entry_id = f"{log.seq + index + 1:08x}"
            lines.append(
                encode_json(
                    MessageEntry(id=entry_id, parent_id=parent_id, timestamp=time, message=message.message, turn=id)
                )
            )
            parent_id = entry_id
        lines.append(self._custom_line(RECORD, complete, log.seq + len(lines) + 1, parent_id))
        log.append(*lines)
        self._add_record(complete)
        return complete

    def sync(self) -> None:
        """Wait until all archives are on disk. Raises StoreError; the folder must then be opened again."""
        if self._log is not None and self._log.dirty:
            self._log.sync()

    def delete(self, ids: Collection[str]) -> list[ArchiveRecord]:
        """Delete the content of the archives `ids` and of their members. Return their records before the deletion.

        When this method returns, the content is in no file of archives. The ids must be known. Raises StoreError; in
        this case, content of some archives may be deleted, and a repetition deletes the rest.
        """
        log = self._writable()
        below = {id: [each.id for each in self.descendants(self.records[id])] for id in ids}
        chosen = {*ids, *(member for members in below.values() for member in members)}
        records = [record for record in self.records.values() if record.id in chosen and not record.deleted]
        # The prompt of a phase belongs to the turn, and is deleted with the turn or its era.
        whole = {member for id in ids if self.records[id].kind != "phase" for member in below[id]}
        phases = {id for id in chosen if self.records[id].kind == "phase" and self.records[id].prompts} - whole
        # Archives that contain others are in later files. If the process is killed, a repetition finds what is left.
        files = [self._archive_file(segment) for segment in sorted(self._offsets, reverse=True)]
        log.close()
        self._log = None
        try:
            for file in files:
                rewrite_archives(file, self.records, chosen, phases, timestamp())
                for torn in self.folder.glob(f"{file.path.name}.torn-*"):
                    torn.unlink()  # it may contain lines of the deleted archives
        except OSError as error:
            raise io_error("delete archives in", self.folder, error) from error
        finally:
            self.records, self.order, self._offsets, self._ids_by_digest = {}, [], {}, {}
            self._read()
        return records

    def _archive_file(self, segment: int) -> ArchiveFile:
        of_segment = [record for record in self.records.values() if record.segment == segment]
        spans = {record.id: self.own_spans(record)[1][0] for record in of_segment}
        ordered = sorted(spans.items(), key=lambda each: each[1])
        ranges = {id: (offset, offset + length) for id, (offset, length) in ordered}
        return ArchiveFile(self.path(segment), ranges, RECORD, SUMMARY, _digest)

    def summarize(self, id: str, text: str) -> ArchiveRecord:
        """Replace the text of the record of the archive `id` by `text`. Return the new record.

        When this method returns, the change is on disk.
        """
        log = self._writable()
        log.append(self._custom_line(SUMMARY, {"id": id, "record": text}, log.seq + 1, None), sync=True)
        self._set_summary(id, text)
        return self.records[id]

    def messages(self, id: str) -> list[StoredMessage]:
        """Return the original messages of the archive `id`.

        Raises DamagedError if the lines of the archive do not match their hash.
        """
        record, lines = self.records[id], self.lines(id)
        path = self.path(record.segment)
        try:
            messages = [_messages.decode(line).message for line in lines]
        except DECODE_ERRORS as error:
            raise DamagedError(f"archive {id} is damaged: {path} at byte {record.offset}: {error}") from error
        differences = record.differences or (None,) * record.count
        stored = [StoredMessage(*each) for each in zip(messages, differences, strict=False)]
        if len(messages) != record.count or _digest(record, stored) != record.sha256:
            raise DamagedError(f"archive {id} is damaged: {path} at byte {record.offset} does not match its checksum")
        return stored

    def own_spans(self, record: ArchiveRecord) -> tuple[Path, Sequence[Span]]:
        path, offsets = self.path(record.segment), self._offsets[record.segment]
        next_index = bisect_right(offsets, record.offset)
        try:
            end = offsets[next_index] if next_index < len(offsets) else path.stat().st_size
        except OSError as error:
            raise StoreError(f"cannot read archive {record.id} in {path}: {error.strerror}") from error
        return path, [(record.offset, end - record.offset)]

    def own_messages(self, record: ArchiveRecord) -> list[Message | None]:
        if record.deleted:
            return []
        messages = self.readable_messages(record)
        skipped = self.record_positions(messages)
        skipped |= {index for index, message in enumerate(messages) if message is DAMAGED}
        # A prompt with records of phases is the prompt of the first of these phases.
        skipped |= {index for index, message in enumerate(messages) if message.role == "user" and self.holders(message)}
        return [None if index in skipped else message for index, message in enumerate(messages)]

    def entries(self, record: ArchiveRecord) -> list[ArchivedMessage]:
        contents = self._own_entries(record)
        if record.kind == "phase" and record.prompts and not record.members:
            # This prompt contains the records of earlier phases, which do not belong to this phase.
            contents[:1] = unfold(self, contents[:1], _message_of, self._own_entries)[:1]
        return unfold(self, contents, _message_of, self._own_entries)

    def is_record_text(self, record: ArchiveRecord, text: str) -> bool:
        if record.deleted:
            return True  # the text of the record was deleted too
        texts = (record.record, self._receipts.get(record.id))
        # Models imitate records. Such a message is not a record, and its text must stay.
        return any(
            scrub(stub_text(record.kind, record.id, each, record.answer)) == scrub(text)
            for each in texts
            if each is not None
        )

    def conversation(self) -> Sequence[Message] | None:
        return self.messages_shown

    def _own_entries(self, record: ArchiveRecord) -> list[ArchivedMessage]:
        return [ArchivedMessage(record.id, *each) for each in enumerate(self.readable_messages(record))]

    def readable_messages(self, record: ArchiveRecord) -> list[Message]:
        """Return the messages of `record`, with DAMAGED in place of those that cannot be read. Raises StoreError.

        The opening of the folder reported the damage.
        """
        try:
            return [stored.message for stored in self.messages(record.id)]
        except DamagedError:
            all_damaged = [DAMAGED] * record.count
        try:
            lines = [line for line in lines_in(*self.own_spans(record)) if line.is_message]
            if len(lines) != record.count or all(line.undamaged for line in lines):
                return all_damaged
            return [_messages.decode(line.object).message if line.undamaged else DAMAGED for line in lines]
        except (DamagedError, *DECODE_ERRORS):
            return all_damaged  # it is unknown how many messages were on the damaged lines

    def _read(self) -> None:
        names = [path.name for path in self.folder.glob("archive-[0-9]*.jsonl")]
        found = [int(match[1]) for name in names if (match := SEGMENT_NAME.fullmatch(name))]
        numbers = sorted(number for number in found if self.path(number).name in names)
        for number in numbers if self._lock is None else numbers[:-1]:
            if self._lock is not None:
                discard_unfinished(self.path(number))
            loaded = load(self.path(number), header=SESSION_HEADER)
            self._read_records(loaded.objects)
            if loaded.report:
                self._note(f"{self.path(number)}: {loaded.report}")
        if numbers and self._lock is not None:
            self._open_segment(numbers[-1])

    def _open_segment(self, number: int) -> AppendLog:
        header = SessionHeader(id=new_id(), timestamp=timestamp(), cwd="", agent="archive")
        self._log, loaded = AppendLog.open(self.path(number), header=encode_json(header))
        self._segment = number
        self._read_records(loaded.objects)
        if loaded.report:
            self._note(f"{self._log.path}: {loaded.report}")
        return self._log

    def _note(self, text: str) -> None:
        if text not in self.notes:
            self.notes.append(text)

    def check_open(self) -> None:
        """Raise StoreError if this process no longer has the folder open.

        The folder may have been closed or removed, or opened before a fork.
        """
        if self._closed:
            raise StoreError(f"{self.folder} is closed, and another process may use it now; open it again")
        if self._lock is None:
            raise StoreError(f"{self.folder} was opened for reading; open it again to change it")
        if not self._lock.holds():
            raise StoreError(
                f"{self.folder} is not open in this process, because it was removed or was opened before a fork. Open "
                "it again; in a forked child, open another folder"
            )

    def _writable(self) -> AppendLog:
        self.check_open()
        if self._log is None or self._log.end > SEGMENT_BYTES:
            if self._log is not None:
                self._log.close()
            return self._open_segment(self._segment + 1)
        return self._log

    def path(self, number: int) -> Path:
        """Return the path of the file with the number `number`."""
        return self.folder / f"archive-{number:06d}.jsonl"

    def _read_records(self, lines: Sequence[bytes]) -> None:
        for line in lines:
            if not line.startswith(b'{"type":"custom"'):
                continue
            try:
                entry = _customs.decode(line)
                if entry.custom_type == RECORD:
                    self._add_record(msgspec.convert(entry.data, ArchiveRecord))
                elif entry.custom_type == SUMMARY and entry.data["id"] in self.records:
                    self._set_summary(entry.data["id"], entry.data["record"])
            except (*DECODE_ERRORS, KeyError, TypeError) as error:
                self.notes.append(f"{self.folder}: a record of an unknown form was skipped: {error}")

    def _set_summary(self, id: str, text: str) -> None:
        self._receipts.setdefault(id, self.records[id].record)
        self.records[id] = msgspec.structs.replace(self.records[id], record=text, summarized=True)
        self.has_summaries = True

    def _add_record(self, record: ArchiveRecord) -> None:
        if record.id not in self.records and record.number != len(self.order) + 1:
            # The line of an earlier archive is damaged. Numbers are positions in `order`.
            record = msgspec.structs.replace(record, number=len(self.order) + 1)
        self.put(record)
        self._receipts.pop(record.id, None)
        self._ids_by_digest[record.sha256] = record.id
        self._offsets.setdefault(record.segment, []).append(record.offset)

    def _custom_line(self, kind: str, data: Any, seq: int, parent_id: str | None) -> bytes:
        return encode_json(
            Custom(id=f"{seq:08x}", parent_id=parent_id, timestamp=timestamp(), custom_type=kind, data=data)
        )


def _digest(record: ArchiveRecord, messages: Sequence[StoredMessage]) -> str:
    """Return a hash that identifies these messages together with the kind and format of the archive."""
    bodies = [encode_json(stored.message) for stored in messages]
    differences = encode_json([stored.difference for stored in messages])
    return sha256(b"\n".join([record.kind.encode(), record.format.encode(), *bodies, differences])).hexdigest()


def _message_of(stored: StoredMessage | ArchivedMessage) -> Message:
    return stored.message
