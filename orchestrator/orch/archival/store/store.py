"""The folder of archived messages. The folder contains append-only files. Each archive is one atomic write.

An archive consists of one entry for each message, followed by the *record*, which is an entry that refers to these
messages. Messages without a record are ignored. When a file reaches its maximum size, a new file is started. All other
data, including the search index, is derived from these files.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from hashlib import sha256
from pathlib import Path
from typing import Any, Final

import msgspec

from orch_protocol.core.archives import Span
from orch_protocol.core.errors import DamagedError, StoreError
from orch_protocol.core.ids import new_id
from orch_protocol.core.messages import Message
from orch_protocol.session.entries import Custom, MessageEntry, SessionHeader
from orch_worker.session.entry_codec import DECODE_ERRORS, SESSION_HEADER, encode_json, timestamp
from orch_worker.session.log.append_log import AppendLog
from orch_worker.session.log.lock import FolderLock
from orch_worker.session.log.log_reader import load

from .catalog import ArchiveRecord, SearchableCatalog, StoredMessage
from .index import message_text
from .unfold import unfold

__all__ = ["ArchiveStore"]

SEGMENT_BYTES: Final = 32 << 20
RECORD: Final = "archive"
SUMMARY: Final = "archive_summary"

_messages = msgspec.json.Decoder(MessageEntry)
_customs = msgspec.json.Decoder(Custom)


class ArchiveStore(SearchableCatalog):
    """An open folder of archives. No other process writes to the folder until `close`."""

    def __init__(self, lock: FolderLock, folder: Path) -> None:
        super().__init__(folder)
        self.notes: list[str] = []
        """Damage that was found when the files were opened, and late summaries that could not be stored, one line each.
        """
        self._lock = lock
        self._closed = False
        self._log: AppendLog | None = None
        self._segment = 0
        self._ids_by_digest: dict[str, str] = {}
        self._offsets: dict[int, list[int]] = {}

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

    def close(self) -> None:
        """Sync all files and unlock the folder. Further calls do nothing."""
        log, self._log, self._closed = self._log, None, True
        try:
            if log is not None:
                log.close()
        finally:
            self._lock.release()

    def add(self, record: ArchiveRecord, messages: Sequence[StoredMessage]) -> ArchiveRecord:
        """Store `messages` and the metadata in `record` in one write. Return the complete record.

        When this method returns, the archive is on disk. If the same messages were archived before, return the existing
        archive. Raises StoreError; in this case nothing was stored.
        """
        differences = tuple(message.difference for message in messages)
        digest = _digest(record, messages)
        if existing := self._ids_by_digest.get(digest):
            return self.records[existing]
        log = self._writable()
        id, time = new_id(), timestamp()
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
        log.append(*lines, sync=True)
        self._add_record(complete)
        return complete

    def summarize(self, id: str, text: str) -> ArchiveRecord:
        """Replace the text of the record of the archive `id` by `text`. Return the new record.

        When this method returns, the change is on disk.
        """
        log = self._writable()
        log.append(self._custom_line(SUMMARY, {"id": id, "record": text}, log.seq + 1, None), sync=True)
        self.records[id] = msgspec.structs.replace(self.records[id], record=text, summarized=True)
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

    def texts(self, record: ArchiveRecord) -> list[str]:
        try:
            messages = [stored.message for stored in self.messages(record.id)]
        except DamagedError:
            return []  # the opening of the folder reported this damage; other archives remain searchable
        skipped = self.record_positions(messages)
        if record.kind == "phase":
            skipped |= set(range(record.prompts))
        return ["" if index in skipped else message_text(message) for index, message in enumerate(messages)]

    def entry(self, record: ArchiveRecord, index: int) -> int:
        if record.kind == "phase" or not record.members:  # the prompts of such archives are read without merged records
            return index + 1
        before: list[StoredMessage] = self.messages(record.id)[:index]
        return len(unfold(self, before, _message_of, lambda each: self.messages(each.id))) + 1

    def _read(self) -> None:
        numbers = sorted(int(path.stem.rpartition("-")[2]) for path in self.folder.glob("archive-[0-9]*.jsonl"))
        for number in numbers[:-1]:
            loaded = load(self.path(number), header=SESSION_HEADER)
            self._read_records(loaded.objects)
            if loaded.report:
                self.notes.append(f"{self.path(number)}: {loaded.report}")
        if numbers:
            self._open_segment(numbers[-1])

    def _open_segment(self, number: int) -> AppendLog:
        header = SessionHeader(id=new_id(), timestamp=timestamp(), cwd="", agent="archive")
        self._log, loaded = AppendLog.open(self.path(number), header=encode_json(header))
        self._segment = number
        self._read_records(loaded.objects)
        if loaded.report:
            self.notes.append(f"{self._log.path}: {loaded.report}")
        return self._log

    def check_open(self) -> None:
        """Raise StoreError if this process no longer has the folder open.

        The folder may have been closed or removed, or opened before a fork.
        """
        if self._closed:
            raise StoreError(f"{self.folder} is closed, and another process may use it now; open it again")
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
                    known = self.records[entry.data["id"]]
                    self.records[known.id] = msgspec.structs.replace(
                        known, record=entry.data["record"], summarized=True
                    )
            except (*DECODE_ERRORS, KeyError, TypeError) as error:
                self.notes.append(f"{self.folder}: a record of an unknown form was skipped: {error}")

    def _add_record(self, record: ArchiveRecord) -> None:
        self.put(record)
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


def _message_of(stored: StoredMessage) -> Message:
    return stored.message
