"""The archives of one running agent: its session file, read as it grows. The file is the agent's alone to write.

What is archived stays where it was written; an archive is some lines of the file, and what is known of them.
"""

from __future__ import annotations

import contextlib
import mmap
from bisect import bisect_left, insort
from collections.abc import Callable, Iterator, Sequence
from operator import itemgetter
from pathlib import Path
from typing import BinaryIO, Final, TypeAlias

import msgspec
from msgspec import Struct

from orch_protocol.core.archives import Collapse, Span
from orch_protocol.core.errors import DamagedError, StoreError
from orch_protocol.core.messages import Message, assistant, user
from orch_protocol.core.taint import TaintLabel
from orch_protocol.core.taint import join_labels as joined_marks
from orch_protocol.session.entries import (
    ArchiveEntry,
    BranchSummary,
    CompactionEntry,
    CustomMessage,
    MarksEntry,
    MessageEntry,
    Telling,
    TurnEndEntry,
    UpgradeEntry,
)
from orch_worker.context.holder_query import entry_message
from orch_worker.conversation.stubs import deletion_marker, holders_in, is_brief, stub_text, stubs_in
from orch_worker.session.entry_tree import EntryTree
from orch_worker.session.log.record_format import ChecksumChain, unseal_line
from orch_worker.session.log_reader import MESSAGES, entries_in, lines_in, messages_in, read_spans
from orch_worker.session.transcript import NAME
from orch_worker.session.visible_messages import VisibleMessages

from .catalog import ArchiveRecord, SearchableCatalog, StoredMessage
from .index import message_text

__all__ = ["LineRange", "SessionArchives", "join_ranges", "read_archive"]

_Known: TypeAlias = Telling | ArchiveEntry | UpgradeEntry | CompactionEntry | TurnEndEntry | MarksEntry
_decoder: msgspec.json.Decoder[_Known] = msgspec.json.Decoder(_Known)
_DECODE_ERRORS: Final = (msgspec.MsgspecError, RecursionError, UnicodeError, OverflowError)
_HEADS: Final = (
    *MESSAGES,
    b'{"type":"archive"',
    b'{"type":"archive_summary"',
    b'{"type":"compaction"',
    b'{"type":"marks"',
)
_TURN_END: Final = b'{"type":"turn_end"'
_DELETED: Final = b',"deleted":"'
_END_BYTES: Final = 24


class _Link(Struct, rename="camel"):
    id: str
    parent_id: str | None = None


_link: msgspec.json.Decoder[_Link] = msgspec.json.Decoder(_Link)


class _PathTracker(Struct, frozen=True):
    """Of the first entries of a file, by place: which are on the path to the last, and the ids of those on no line."""

    on: bytearray
    lost: dict[int, str]


class LineRange(Struct, frozen=True):
    """Which lines of the file a shown message stands for: bytes `start` to `end`, the first line up to `head`.

    `messages` is how many messages are on them: none for one that is shown as lost. `own` says that what is shown is
    the message on the line. What compaction left stands for all of the lines; `summaries` is where its text is, and
    that of every one before it, each on a line behind those.
    """

    start: int
    end: int
    head: int
    messages: int
    own: bool = False
    summaries: tuple[int, ...] = ()


class SessionArchives(SearchableCatalog):
    """The archives of the agent whose session is in `folder`, and what its conversation shows, as the file has it."""

    def __init__(self, folder: Path, name: str = NAME) -> None:
        super().__init__(folder)
        self.path = folder / name
        self.forget()

    def forget(self) -> None:
        """Know nothing any more; the next `catch_up` reads all of the file."""
        self.records.clear()
        self.order.clear()
        self.view: VisibleMessages[LineRange] = VisibleMessages()
        # Behind the last whole append: the offset, the number and checksum of its last line, and how that ends, which
        # by its checksum stands for all before it.
        self._end, self._seq, self._checksum, self._seen = 0, 0, 0, b""
        self._leaf: str | None = None
        # Whether the conversation has gone back somewhere, so that what it shows is not known; and, while the file is
        # read again for that, what is known of its entries beforehand, and how many of them there were so far.
        self._astray, self._trail, self._place = False, _PathTracker(bytearray(), {}), 0
        self._marks: tuple[TaintLabel, ...] = ()  # so far, on whichever branch
        self.forgotten: dict[str, str] = {}
        """When the answers of turns were deleted, by query id, of those that were."""
        self.summaries: dict[int, str] = {}
        """Where the lines of compactions begin whose summaries an archive stands for, and that one's id."""
        self.damaged: list[Span] = []
        """Damaged lines, ascending."""
        # These, and those that are not on the path.
        self._skipped: list[Span] = []
        # Of the lines that an archive shows as its own: where they begin and end, and its number. Sorted.
        self._owners: list[tuple[int, int, int]] = []

    def catch_up(self) -> list[ArchiveRecord]:
        """Read what was appended since the last time, and return the archives that are new.

        An append that is not there in full is left for the next time. When the file is not the one that was seen then,
        it is forgotten, and all archives are new. Raises StoreError when the file cannot be read.
        """
        try:
            with open(self.path, "rb") as file:
                if not self._goes_on(file):
                    self.forget()
                known = len(self.records)
                self._read(file, self._take)
                while self._astray:
                    self._retrace(file)
        except FileNotFoundError:
            self.forget()
            return []
        except OSError as error:
            raise StoreError(f"cannot read {self.path}: {error.strerror}") from error
        return [self.numbered(number) for number in range(known + 1, len(self.records) + 1)]

    def _goes_on(self, file: BinaryIO) -> bool:
        """Return whether what was seen of the file is still there: it may be another, or have been cut."""
        file.seek(self._end - len(self._seen))
        return file.read(len(self._seen)) == self._seen

    def _retrace(self, file: BinaryIO) -> None:
        """Read all of the file again, once to find the path to its last entry, once to follow that."""
        lineage, lost = EntryTree(), dict[int, str]()

        def trace(_start: int, _end: int, line: bytes | None) -> None:
            link = _linked(line)
            if link is None:
                return
            if link.parent_id is not None and lineage.missing(link.parent_id):
                lost[len(lineage)] = link.parent_id
                lineage.add(link.parent_id, lineage.leaf)
            lineage.add(link.id, link.parent_id)

        self.forget()
        self._read(file, trace)
        self.forget()
        self._trail = _PathTracker(lineage.path(len(lineage) - 1), lost)
        self._read(file, self._take)
        self._trail = _PathTracker(bytearray(), {})

    def _read(self, file: BinaryIO, take: Callable[[int, int, bytes | None], None]) -> None:
        start = end = file.seek(self._end)
        chain = ChecksumChain(self._seq, self._checksum)
        # Of an append that is not over: where each line begins and ends, and the object on it, None on a damaged one.
        waiting: list[tuple[int, int, bytes | None]] = []
        for line in file:
            start, end = end, end + len(line)
            sealed = unseal_line(line[:-1]) if line.endswith(b"\n") else None
            good, _ = chain.take(line[:-1], sealed)
            waiting.append((start, end, sealed.object if good and sealed is not None else None))
            if good and sealed is not None and not sealed.more:
                for each in waiting:
                    take(*each)
                waiting.clear()
                self._end, self._seq, self._checksum, self._seen = end, chain.seq, chain.checksum, line[-_END_BYTES:]

    def messages(self, id: str) -> list[StoredMessage]:
        return [StoredMessage(message) for message in self.read(id)]

    def read(self, id: str, first: int = 1, last: int | None = None) -> list[Message]:
        """Return the messages `first` to `last` (from 1) of the archive `id`, however much it is.

        Raises DamagedError when one of them is damaged, StoreError.
        """
        return read_archive(self.path, self.records[id], first, last)

    def texts(self, record: ArchiveRecord) -> list[str]:
        if record.deleted:
            return []  # a prompt that the conversation still shows is no archive's any more
        try:
            return [_text(held.entry) for held in entries_in(self.path, record.own)]
        except DamagedError:
            return []  # who reads it is told; the others can be searched all the same

    def entry(self, record: ArchiveRecord, place: int) -> int:
        offset = [line.offset for line in lines_in(self.path, record.own) if line.is_message][place]
        lines = (line for line in lines_in(self.path, record.spans) if line.is_message)
        return next(number for number, line in enumerate(lines, 1) if line.offset == offset)

    def lines(self, id: str) -> list[bytes]:
        parts = read_spans(self.path, self.records[id].own)
        sealed = (unseal_line(line) for part in parts for line in part.split(b"\n") if line.startswith(MESSAGES))
        return [line.object if line else b"" for line in sealed]

    def containing(self, wanted: bytes) -> Iterator[ArchiveRecord]:
        try:
            with open(self.path, "rb") as file, mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ) as data:
                for start, end, number in list(self._owners):
                    if data.find(wanted, start, end) >= 0:
                        yield self.numbered(number)
        except (OSError, ValueError) as error:  # there is nothing in it
            raise StoreError(f"cannot read {self.path}: {error}") from error

    def live(self) -> set[int]:
        """Return where the lines begin whose text the conversation shows: messages, and prompts of turns in phases."""
        found = set()
        for item in self.view.items:
            stubs = len(holders_in(item.message))
            phased = item.message.role == "user" and 0 < stubs < len(item.message.content)
            if item.note.own or (phased and not item.note.summaries):
                found.add(item.note.start)
        return found

    def stubs(self) -> set[str]:
        """Return the ids of the archives whose stubs the conversation shows."""
        return {holder for item in self.view.items for holder in holders_in(item.message)}

    def briefs(self) -> set[str]:
        """Return those of `stubs` of which the conversation shows what they were about, beside a summary."""
        texts = (text for item in self.view.items for text in stubs_in(item.message).items())
        return {holder for holder, text in texts if is_brief(text)}

    def _take(self, start: int, end: int, line: bytes | None) -> None:
        if line is None:
            self.damaged.append((start, end - start))
            self._skipped.append((start, end - start))
            return
        entry: _Known | _Link | None
        try:
            telling = line.startswith(_HEADS) or (line.startswith(_TURN_END) and _DELETED in line)
            entry = (_decoder if telling else _link).decode(line)
        except _DECODE_ERRORS:
            entry = _linked(line)  # of a later version
        if entry is None:
            return
        shown = self._follow(entry, start)
        if not shown:
            self._skipped.append((start, end - start))
        if isinstance(entry, (MessageEntry, CustomMessage, BranchSummary)):
            if shown:
                self.view.add(entry.id, entry.message, LineRange(start, end, end, 1, own=True))
        elif isinstance(entry, ArchiveEntry):
            self._take_archive(entry, shown)
        elif isinstance(entry, UpgradeEntry):
            self._take_upgrade(entry, shown)
        elif isinstance(entry, CompactionEntry):
            if shown:
                stop = self.view.kept(entry.first_kept_entry_id)
                self.view.compact(entry.summary, stop, entry.id, lambda covers: _range_of_summary(covers, start))
        elif isinstance(entry, MarksEntry):
            self._marks = joined_marks(self._marks, entry.marks)
        elif isinstance(entry, TurnEndEntry) and entry.deleted:
            self.forgotten[entry.turn] = entry.deleted

    def _follow(self, entry: _Known | _Link, start: int) -> bool:
        """Return whether the conversation has `entry` on its path; the one before it is shown as lost, if it is."""
        before, self._leaf = self._leaf, entry.id
        trail, place = self._trail, self._place
        if place >= len(trail.on):
            # Where it goes on is told from all of the file: what is said to be followed may be any entry, or none.
            self._astray = self._astray or entry.parent_id != before
            return not self._astray
        if place in trail.lost:
            if trail.on[place]:
                self.view.lose(trail.lost[place], LineRange(start, start, start, 0))
            place += 1
        self._place = place + 1
        return bool(trail.on[place])

    def _take_archive(self, entry: ArchiveEntry, shown: bool) -> None:
        collapse = entry.collapse
        # What a damaged file does not show any more in one piece stays as it is, and is the archive's all the same.
        with contextlib.suppress(StoreError):
            if shown:
                first, stop = self.view.part(collapse.first, collapse.last)
                cover = join_ranges([item.note for item in self.view.items[first:stop]])
                self.view.collapse(collapse, cover, deleted=bool(entry.deleted))
                self.summaries |= dict.fromkeys(cover.summaries, collapse.holder)
        number = len(self.records) + 1
        self.keep(
            msgspec.structs.replace(
                _record(collapse),
                id=collapse.holder,
                number=number,
                timestamp=entry.timestamp,
                spans=collapse.spans,
                sha256=collapse.sha256,
                deleted=entry.deleted,
                marks=self._marks,
            )
        )
        for start, length in self.records[collapse.holder].own:
            insort(self._owners, (start, start + length, number))

    def _take_upgrade(self, entry: UpgradeEntry, shown: bool) -> None:
        upgrade = entry.upgrade
        if shown:
            self.view.upgrade(upgrade)
        if (record := self.records.get(upgrade.holder)) is not None:
            _, _, said = upgrade.stub.partition("\n\n")
            text = said.removesuffix(f"\n\nFinal answer:\n{record.answer}")
            self.keep(msgspec.structs.replace(record, record=text, summarised=True))

    def sound(self, start: int, end: int) -> Iterator[Span]:
        """Yield the lines from `start` to `end` without those that are damaged, or not on the path."""
        for offset, length in self._skipped[bisect_left(self._skipped, (start, 0)) :]:
            if offset >= end:
                break
            if start < offset:
                yield start, offset - start
            start = offset + length
        if start < end:
            yield start, end - start

    def shown(self, record: ArchiveRecord) -> tuple[Message, ...]:
        """Return what the holder of an era is shown: the records of its members, and the messages between them."""
        parts = [(held.offset, [entry_message(held)]) for held in entries_in(self.path, record.own)]
        for id in record.members:
            member = self.records[id]
            stub = stub_text(member.kind, id, member.record, member.answer)
            parts.append((member.spans[0][0], [user(member.task or deletion_marker(member.deleted)), assistant(stub)]))
        return tuple(message for _, messages in sorted(parts, key=itemgetter(0)) for message in messages)


def _text(entry: Telling | None) -> str:
    if entry is None or (isinstance(entry, MessageEntry) and entry.deleted):
        return ""
    return message_text(entry.message)


def _linked(line: bytes | None) -> _Link | None:
    """Return where the entry on `line` stands in the tree, None if it stands nowhere."""
    try:
        return _link.decode(line) if line is not None else None
    except _DECODE_ERRORS:
        return None


def read_archive(path: Path, record: ArchiveRecord, first: int = 1, last: int | None = None) -> list[Message]:
    """Return the messages `first` to `last` (from 1) of an archive in the file at `path`.

    Raises DamagedError, StoreError.
    """
    try:
        return [entry.message for _, entry in messages_in(path, record.spans, record.sha256, first, last)]
    except DamagedError as error:
        raise DamagedError(f"archive {record.id}: {error}") from error


def _record(collapse: Collapse) -> ArchiveRecord:
    """Return what is on record of an archive; of one that another version made, what is to be known of any."""
    try:
        return msgspec.convert(collapse.record, ArchiveRecord)
    except msgspec.ValidationError:
        return ArchiveRecord(
            id=collapse.holder,
            number=0,
            kind=collapse.kind,
            task=collapse.task,
            count=0,
            prompts=0,
            stands=len(collapse.messages),
            calls=0,
            turns=0,
            tokens=0,
            level=0,
            timestamp="",
            format="orch",
            record="",
            reason="",
            own=collapse.spans,
        )


def join_ranges(covers: Sequence[LineRange]) -> LineRange:
    """Return what items that follow each other stand for together."""
    distinct = dict.fromkeys(covers)
    messages = sum(cover.messages for cover in distinct)
    summaries = tuple(offset for cover in distinct for offset in cover.summaries)
    return LineRange(covers[0].start, max(cover.end for cover in covers), covers[0].head, messages, summaries=summaries)


def _range_of_summary(covers: Sequence[LineRange], line: int) -> LineRange:
    """Return what the summary that is on the line at `line` stands for: all that those stood for whom it replaced."""
    cover = join_ranges(covers) if covers else LineRange(line, line, line, 0)
    return msgspec.structs.replace(cover, summaries=(*cover.summaries, line))
