"""The folder that archived messages lie in: append-only files, each archive one write that is whole or not there.

A file holds for each archive its messages, an entry each, and behind them one entry that names them, the *record*:
without it they do not count. A file that has grown large is followed by the next. Everything else, the search index
too, is derived from these files.
"""

from __future__ import annotations

import mmap
import time
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from hashlib import sha256
from pathlib import Path
from typing import Any, Final

import msgspec

from orch_protocol.core.errors import DamagedError, StoreError
from orch_protocol.core.ids import new_id
from orch_protocol.core.messages import Message
from orch_protocol.core.text import scrub
from orch_protocol.session.entries import Custom, MessageEntry, SessionHeader
from orch_worker.session.log.append_log import AppendLog, load
from orch_worker.session.log.lock import FolderLock
from orch_worker.session.log.record_format import unseal_line

from .catalog import ArchiveRecord, SearchableCatalog, StoredMessage
from .index import message_text
from .unfold import unfold

__all__ = ["ArchiveStore"]

SEGMENT_BYTES: Final = 32 << 20
RECORD: Final = "archive"
SUMMARY: Final = "archive_summary"

_encoder = msgspec.json.Encoder()
_messages = msgspec.json.Decoder(MessageEntry)
_customs = msgspec.json.Decoder(Custom)
_DECODE_ERRORS: Final = (msgspec.MsgspecError, RecursionError, UnicodeError, OverflowError)


class ArchiveStore(SearchableCatalog):
    """An open folder of archives; nobody else writes it until `close`."""

    def __init__(self, lock: FolderLock, folder: Path) -> None:
        super().__init__(folder)
        self.notes: list[str] = []
        """What was damaged or cut off when the files were opened, a line each."""
        self._lock = lock
        self._closed = False
        self._log: AppendLog | None = None
        self._segment = 0
        self._by_content: dict[str, str] = {}

    @classmethod
    def open(cls, folder: Path) -> ArchiveStore:
        """Lock `folder`, create it if need be, and read what it holds.

        Raises LockedError when another process has it open, ForeignFileError for a file that is none of ours (it is
        left alone), StoreError when it cannot be used.
        """
        archive = cls(FolderLock.acquire(folder), folder)
        try:
            archive._read()
        except BaseException:
            archive.close()
            raise
        return archive

    def close(self) -> None:
        """Make everything durable and give the folder up; closing twice does nothing."""
        log, self._log, self._closed = self._log, None, True
        try:
            if log is not None:
                log.close()
        finally:
            self._lock.release()

    def add(self, record: ArchiveRecord, messages: Sequence[StoredMessage]) -> ArchiveRecord:
        """Store `messages` durably with what `record` says of them, in one write, and return the full record.

        The same messages archived once more are the archive they were. Raises StoreError: then nothing was stored.
        """
        rest = tuple(stored.rest for stored in messages)
        digest = _digest(record, messages)
        if known := self._by_content.get(digest):
            return self.records[known]
        log = self._writable()
        id, now = new_id(), _timestamp()
        full = msgspec.structs.replace(
            record,
            id=id,
            number=len(self.records) + 1,
            count=len(messages),
            timestamp=now,
            rest=rest if any(rest) else (),
            segment=self._segment,
            offset=log.end,
            sha256=digest,
        )
        lines, parent = [], None
        for place, stored in enumerate(messages):
            entry = f"{log.seq + place + 1:08x}"
            lines.append(
                _encoded(MessageEntry(id=entry, parent_id=parent, timestamp=now, message=stored.message, turn=id))
            )
            parent = entry
        lines.append(self._custom(RECORD, full, log.seq + len(lines) + 1, parent))
        log.append(*lines, sync=True)
        self._take(full)
        return full

    def summarise(self, id: str, text: str) -> ArchiveRecord:
        """Put `text` in place of the record of the archive `id`, durably, and return it."""
        log = self._writable()
        log.append(self._custom(SUMMARY, {"id": id, "record": text}, log.seq + 1, None), sync=True)
        self.records[id] = msgspec.structs.replace(self.records[id], record=text, summarised=True)
        return self.records[id]

    def messages(self, id: str) -> list[StoredMessage]:
        """Return the messages of the archive `id`, exactly. Raises DamagedError when its lines do not match."""
        record, lines = self.records[id], self.lines(id)
        path = self.path(record.segment)
        try:
            found = [_messages.decode(line).message for line in lines]
        except _DECODE_ERRORS as error:
            raise DamagedError(f"archive {id} is damaged: {path} at byte {record.offset}: {error}") from error
        rest = record.rest or (None,) * record.count
        stored = [StoredMessage(*pair) for pair in zip(found, rest, strict=True)]
        if _digest(record, stored) != record.sha256:
            raise DamagedError(f"archive {id} is damaged: {path} at byte {record.offset} does not match its checksum")
        return stored

    def lines(self, id: str) -> list[bytes]:
        """Return the lines that hold the messages of the archive `id`, b"" for one that is none of ours."""
        record = self.records[id]
        path = self.path(record.segment)
        try:
            with open(path, "rb") as file:
                file.seek(record.offset)
                sealed = [unseal_line(file.readline().rstrip(b"\n")) for _ in range(record.count)]
        except OSError as error:
            raise StoreError(f"cannot read archive {id} in {path}: {error.strerror}") from error
        return [line.object if line else b"" for line in sealed]

    def texts(self, record: ArchiveRecord) -> list[str]:
        try:
            messages = [stored.message for stored in self.messages(record.id)]
        except DamagedError:
            return []  # it was told when the folder was opened; the others can be searched all the same
        hidden = self.stubs_among(messages)
        if record.kind == "phase":
            hidden |= set(range(record.prompts))
        return ["" if place in hidden else message_text(message) for place, message in enumerate(messages)]

    def entry(self, record: ArchiveRecord, place: int) -> int:
        if record.kind == "phase" or not record.members:  # what it merged stands in its prompt, read without that
            return place + 1
        before: list[StoredMessage] = self.messages(record.id)[:place]
        return len(unfold(self, before, _message, lambda each: self.messages(each.id))) + 1

    def containing(self, wanted: bytes) -> Iterator[ArchiveRecord]:
        places: dict[int, list[ArchiveRecord]] = {}
        for record in self.records.values():
            places.setdefault(record.segment, []).append(record)
        for segment, records in places.items():
            offsets = [record.offset for record in records]
            with self.mapped(segment) as data:
                at = data.find(wanted)
                while at >= 0:
                    number = bisect_right(offsets, at)
                    if number:
                        yield records[number - 1]
                    if number == len(offsets):
                        break
                    at = data.find(wanted, offsets[number])

    @contextmanager
    def mapped(self, segment: int) -> Iterator[mmap.mmap]:
        """Yield all of a file, to be looked through. Raises StoreError when it cannot be read."""
        path = self.path(segment)
        try:
            with open(path, "rb") as file:
                data = mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ)
        except (OSError, ValueError) as error:
            raise StoreError(f"cannot read {path}: {error}") from error
        with data:
            yield data

    def _read(self) -> None:
        numbers = sorted(int(path.stem.rpartition("-")[2]) for path in self.folder.glob("archive-[0-9]*.jsonl"))
        for number in numbers[:-1]:
            loaded = load(self.path(number), header=_HEADER)
            self._take_all(loaded.objects)
            if loaded.report:
                self.notes.append(f"{self.path(number)}: {loaded.report}")
        if numbers:
            self._open_segment(numbers[-1])

    def _open_segment(self, number: int) -> AppendLog:
        header = SessionHeader(id=new_id(), timestamp=_timestamp(), cwd="", agent="archive")
        self._log, loaded = AppendLog.open(self.path(number), header=_encoded(header))
        self._segment = number
        self._take_all(loaded.objects)
        if loaded.report:
            self.notes.append(f"{self._log.path}: {loaded.report}")
        return self._log

    def check_ours(self) -> None:
        """Raise StoreError where the folder is not ours any more: closed, removed, or left behind by a fork."""
        if self._closed:
            raise StoreError(f"{self.folder} is closed, and may be another's by now: open it again")
        if not self._lock.holds():
            raise StoreError(
                f"{self.folder} is not this process's: it was removed, or opened before a fork. "
                "Open it, or in a forked child another folder, anew"
            )

    def _writable(self) -> AppendLog:
        self.check_ours()
        if self._log is None or self._log.end > SEGMENT_BYTES:
            if self._log is not None:
                self._log.close()
            return self._open_segment(self._segment + 1)
        return self._log

    def path(self, number: int) -> Path:
        """Return the file with that number."""
        return self.folder / f"archive-{number:06d}.jsonl"

    def _take_all(self, lines: Sequence[bytes]) -> None:
        for line in lines:
            if not line.startswith(b'{"type":"custom"'):
                continue
            try:
                entry = _customs.decode(line)
                if entry.custom_type == RECORD:
                    self._take(msgspec.convert(entry.data, ArchiveRecord))
                elif entry.custom_type == SUMMARY and entry.data["id"] in self.records:
                    known = self.records[entry.data["id"]]
                    self.records[known.id] = msgspec.structs.replace(
                        known, record=entry.data["record"], summarised=True
                    )
            except (*_DECODE_ERRORS, KeyError, TypeError) as error:
                self.notes.append(f"{self.folder}: a record of an unknown shape was passed over: {error}")

    def _take(self, record: ArchiveRecord) -> None:
        self.keep(record)
        self._by_content[record.sha256] = record.id

    def _custom(self, kind: str, data: Any, number: int, parent: str | None) -> bytes:
        return _encoded(
            Custom(id=f"{number:08x}", parent_id=parent, timestamp=_timestamp(), custom_type=kind, data=data)
        )


def _digest(record: ArchiveRecord, messages: Sequence[StoredMessage]) -> str:
    """Return what tells these messages, archived as this, from all others."""
    bodies = [_encoded(stored.message) for stored in messages]
    rest = _encoded([stored.rest for stored in messages])
    return sha256(b"\n".join([record.kind.encode(), record.format.encode(), *bodies, rest])).hexdigest()


def _encoded(value: Any) -> bytes:
    try:
        try:
            return _encoder.encode(value)
        except UnicodeEncodeError:
            return _encoder.encode(scrub(msgspec.to_builtins(value)))
    except (*_DECODE_ERRORS, TypeError, ValueError) as error:
        raise StoreError(f"cannot archive a {type(value).__name__}: {error}") from error


def _timestamp() -> str:
    """Return the time as ISO 8601 in UTC with milliseconds."""
    milliseconds = time.time_ns() // 1_000_000
    return f"{time.strftime('%Y-%m-%dT%H:%M:%S', time.gmtime(milliseconds // 1000))}.{milliseconds % 1000:03d}Z"


_HEADER: Final = _encoded(SessionHeader(id="", timestamp="", cwd=""))


def _message(stored: StoredMessage) -> Message:
    return stored.message
