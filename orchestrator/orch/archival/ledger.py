"""The archives of one running agent: its session file, read as it grows. The file is the agent's alone to write.

What is archived stays where it was written; an archive is some lines of the file, and what is known of them.
"""

from __future__ import annotations

import mmap
from bisect import insort
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import islice
from operator import itemgetter
from pathlib import Path
from typing import Any, BinaryIO, Final

import msgspec
from msgspec import Struct

from orch_protocol.archive import Collapse, Span
from orch_protocol.entries import ArchiveEntry, MessageEntry, UpgradeEntry
from orch_protocol.errors import DamagedError, StoreError
from orch_protocol.ids import new_id
from orch_protocol.messages import Message, assistant, user
from orch_worker.excerpt import Line, decoded, digest, lines_of, messages_in, read_spans
from orch_worker.lines import unseal
from orch_worker.stubs import stub_text
from orch_worker.transcript import NAME
from orch_worker.view import Item, View

from .index import message_text
from .pieces import Piece, Pieces
from .shelf import Record, SearchableShelf, Shelf, Stored

__all__ = ["Draft", "Ledger"]

_decoder: msgspec.json.Decoder[MessageEntry | ArchiveEntry | UpgradeEntry] = msgspec.json.Decoder(
    MessageEntry | ArchiveEntry | UpgradeEntry
)
BLOCK: Final = 1 << 20
_DECODE_ERRORS: Final = (msgspec.MsgspecError, RecursionError, UnicodeError, OverflowError)
_HEADS: Final = (b'{"type":"message"', b'{"type":"archive"', b'{"type":"archive_summary"')


class Cover(Struct, frozen=True):
    """Which lines of the file a shown message stands for: bytes `start` to `end`, the first line up to `head`."""

    start: int
    end: int
    head: int
    messages: int


class Ledger(SearchableShelf):
    """The archives of the agent whose session is in `folder`, and what its conversation shows, as the file has it."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.path = folder / NAME
        self.forget()

    def forget(self) -> None:
        """Know nothing any more; the next `catch_up` reads all of the file."""
        self.records.clear()
        self._order.clear()
        self.view: View[Cover] = View()
        self._end = 0
        # Of the lines that an archive shows as its own: where they begin and end, and its number. Sorted.
        self._owners: list[tuple[int, int, int]] = []

    def catch_up(self) -> list[Record]:
        """Read what was appended since the last time, and return the archives that are new.

        An append that is not there in full is left for the next time. Raises StoreError when the file cannot be read.
        """
        known = len(self.records)
        try:
            with open(self.path, "rb") as file:
                self._read(file)
        except FileNotFoundError:
            return []
        except OSError as error:
            raise StoreError(f"cannot read {self.path}: {error.strerror}") from error
        return [self.numbered(number) for number in range(known + 1, len(self.records) + 1)]

    def _read(self, file: BinaryIO) -> None:
        if file.seek(0, 2) < self._end:
            # What was seen is not there any more (a write that was taken back): all of it is read anew.
            self.forget()
        start = end = file.seek(self._end)
        waiting: list[tuple[int, int, bytes]] = []
        for line in file:
            if not line.endswith(b"\n"):
                break
            start, end = end, end + len(line)
            sealed = unseal(line[:-1])
            if sealed is not None:
                waiting.append((start, end, sealed.object))
            if sealed is None or not sealed.more:
                for each in waiting:
                    self._take(*each)
                waiting.clear()
                self._end = end

    def messages(self, id: str) -> list[Stored]:
        record = self.records[id]
        return [Stored(entry.message) for _, entry in messages_in(self.path, record.spans, record.sha256)]

    def read(self, id: str, first: int, last: int | None) -> list[Message]:
        """Return the messages `first` to `last` (from 1) of the archive `id`, however much it is.

        Raises DamagedError, StoreError.
        """
        record = self.records[id]
        if record.kind != "era":
            return [stored.message for stored in self.messages(id)][first - 1 : last]
        lines = (line for span in record.spans for line in self._lines(span) if line.is_message)
        return [decoded(self.path, line).message for line in islice(lines, first - 1, last)]

    def texts(self, record: Record) -> list[str]:
        try:
            return [message_text(entry.message) for _, entry in messages_in(self.path, record.own)]
        except DamagedError:
            return []  # who reads it is told; the others can be searched all the same

    def entry(self, record: Record, place: int) -> int:
        offset = messages_in(self.path, record.own)[place][0]
        lines = (line for span in record.spans for line in self._lines(span) if line.is_message)
        return next(number for number, line in enumerate(lines, 1) if line.offset == offset)

    def lines(self, id: str) -> list[bytes]:
        parts = read_spans(self.path, self.records[id].own)
        sealed = (unseal(line) for part in parts for line in part.split(b"\n") if line.startswith(_HEADS[0]))
        return [line.object if line else b"" for line in sealed]

    def containing(self, wanted: bytes) -> Iterator[Record]:
        with open(self.path, "rb") as file, mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ) as data:
            for start, end, number in list(self._owners):
                if data.find(wanted, start, end) >= 0:
                    yield self.numbered(number)

    def _lines(self, span: Span) -> Iterator[Line]:
        """Yield the lines of `span`, a part of the file at a time."""
        offset, length = span
        end, rest = offset + length, b""
        while offset < end:
            (part,) = read_spans(self.path, [(offset, min(BLOCK, end - offset))])
            whole = rest + part
            cut = whole.rfind(b"\n") + 1
            yield from lines_of(whole[:cut], offset - len(rest))
            offset, rest = offset + len(part), whole[cut:]
            if not part:
                break  # the file is shorter than it was

    def _take(self, start: int, end: int, line: bytes) -> None:
        if not line.startswith(_HEADS):
            return
        try:
            entry = _decoder.decode(line)
        except _DECODE_ERRORS:
            return  # of a later version, or damaged: its agent tells of it
        if isinstance(entry, MessageEntry):
            self.view.add(entry.id, entry.message, Cover(start, end, end, 1))
        elif isinstance(entry, ArchiveEntry):
            self._take_archive(entry)
        else:
            self._take_upgrade(entry)

    def _take_archive(self, entry: ArchiveEntry) -> None:
        collapse = entry.collapse
        try:
            first, stop = self.view.part(collapse.first, collapse.last)
            covers = [item.note for item in self.view.items[first:stop]]
            record = msgspec.convert(collapse.record, Record)
        except (StoreError, msgspec.ValidationError):
            return
        self.view.collapse(collapse, _joined(covers))
        number = len(self.records) + 1
        self.keep(
            msgspec.structs.replace(
                record,
                id=collapse.holder,
                number=number,
                timestamp=entry.timestamp,
                spans=collapse.spans,
                sha256=collapse.sha256,
            )
        )
        for start, length in record.own:
            insort(self._owners, (start, start + length, number))

    def _take_upgrade(self, entry: UpgradeEntry) -> None:
        upgrade = entry.upgrade
        self.view.upgrade(upgrade)
        if (record := self.records.get(upgrade.holder)) is not None:
            _, _, said = upgrade.stub.partition("\n\n")
            text = said.removesuffix(f"\n\nFinal answer:\n{record.answer}")
            self.keep(msgspec.structs.replace(record, record=text, summarised=True))

    def shown(self, record: Record) -> tuple[Message, ...]:
        """Return what the holder of an era is shown: the records of its members, and the messages between them."""
        parts = [(start, [entry.message]) for start, entry in messages_in(self.path, record.own)]
        for id in record.members:
            member = self.records[id]
            stub = stub_text(member.kind, id, member.record, member.answer)
            parts.append((member.spans[0][0], [user(member.task), assistant(stub)]))
        return tuple(message for _, messages in sorted(parts, key=itemgetter(0)) for message in messages)


class Draft:
    """What is to be archived next of what a ledger shows. Nothing of it is true before the agent has it on record."""

    def __init__(self, ledger: Ledger, pieces: Callable[[Shelf], Pieces]) -> None:
        self.collapses: list[Collapse] = []
        self.summarise: list[str] = []
        self.shelf = _Plan(ledger)
        self.pieces = pieces(self.shelf)
        self._ledger = ledger
        self.items = list(ledger.view.items)
        self.shown = [self.pieces.piece(item.message) for item in self.items]
        self._by_piece = dict(zip(map(id, self.shown), self.items, strict=True))
        self._kept = list(self.shown)  # as long as they are here no other has the id of one

    def store(self, record: Record, part: Sequence[Piece], said: Sequence[Message], summarise: bool) -> Record:
        """Return `record` of `part` as it will be."""
        covers = [self._by_piece[id(piece)].note for piece in part]
        # A prompt with stubs of phases stands for these too; by itself it is its first line.
        alone = [
            Cover(cover.start, cover.head, cover.head, 1) if piece.holders and piece.message.role == "user" else cover
            for cover, piece in zip(covers, part, strict=True)
        ]
        shown = {id(message) for message in said}
        if record.kind == "phase":
            whole = _spans(alone, covers, range(len(part)))
            own = _spans(alone, covers, range(record.prompts, len(part)))
        else:
            whole = _spans(covers, covers, range(len(part)))
            own = _spans(alone, covers, [place for place, piece in enumerate(part) if id(piece.message) in shown])
        counted = alone if record.kind == "phase" else covers
        full = msgspec.structs.replace(
            record,
            id=new_id(),
            number=len(self.shelf.records) + 1,
            count=sum(cover.messages for cover in dict.fromkeys(counted)),
            spans=whole,
            own=own,
            # An era may be of any size: its members have their own, and each line has a checksum.
            sha256="" if record.kind == "era" else digest(read_spans(self._ledger.path, whole)),
        )
        self.shelf.keep(full)
        if summarise:
            self.summarise.append(full.id)
        return full

    def changed(self, was: Sequence[Piece], now: Sequence[Piece], holder: str) -> None:
        """Take down that the archive `holder` turned `was` into `now`."""
        start = next(place for place, (one, other) in enumerate(zip(was, now, strict=False)) if one is not other)
        same = 0
        while same < min(len(was), len(now)) - start and was[-1 - same] is now[-1 - same]:
            same += 1
        items = [self._by_piece[id(piece)] for piece in was[start : len(was) - same]]
        record = self.shelf.records[holder]
        first, last, cover = items[0].first, items[-1].last, _joined([item.note for item in items])
        stubs = now[start : len(now) - same]
        for piece in stubs:
            self._by_piece[id(piece)] = Item(piece.message, first, last, cover)
        self._kept += stubs
        plain: dict[str, Any] = msgspec.to_builtins(record)
        self.collapses.append(
            Collapse(
                holder=holder,
                kind=record.kind,
                task=record.task,
                first=first,
                last=last,
                messages=tuple(piece.message for piece in stubs),
                spans=record.spans,
                sha256=record.sha256,
                record=plain,
            )
        )


class _Plan(Shelf):
    """A ledger with what is planned on top of it."""

    def __init__(self, ledger: Ledger) -> None:
        super().__init__(ledger.folder)
        self.records = dict(ledger.records)
        self._path = ledger.path

    def messages(self, id: str) -> list[Stored]:
        record = self.records[id]
        return [Stored(entry.message) for _, entry in messages_in(self._path, record.spans, record.sha256)]


def _joined(covers: Sequence[Cover]) -> Cover:
    """Return what items that follow each other stand for together."""
    messages = sum(cover.messages for cover in dict.fromkeys(covers))
    return Cover(covers[0].start, max(cover.end for cover in covers), covers[0].head, messages)


def _spans(used: Sequence[Cover], covers: Sequence[Cover], places: Iterable[int]) -> tuple[Span, ...]:
    """Return the lines of `used[place]` for each of `places`, ascending; neighbours are one span.

    Between two items that follow each other the file holds no other message, unless the first is not used whole.
    """
    spans: list[tuple[int, int]] = []
    before = -2
    for place in places:
        cover = used[place]
        if place == before + 1 and used[before].end == covers[before].end:
            spans[-1] = (spans[-1][0], max(spans[-1][1], cover.end))
        else:
            spans.append((cover.start, cover.end))
        before = place
    return tuple((start, end - start) for start, end in spans)
