"""What is to be archived next of what a ledger shows."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import msgspec

from orch_protocol.archive import Collapse, Span
from orch_protocol.ids import new_id
from orch_protocol.messages import Message
from orch_worker.excerpt import digest, read_spans
from orch_worker.view import Item

from .ledger import Cover, Ledger, joined, read_archive
from .pieces import Piece, Pieces
from .shelf import Record, Shelf, Stored

__all__ = ["Draft"]


class Draft:
    """What is to be archived next of what a ledger shows. Nothing of it is true before the agent has it on record."""

    def __init__(self, ledger: Ledger, pieces: Callable[[Shelf], Pieces]) -> None:
        self.collapses: list[Collapse] = []
        self.summarise: list[str] = []
        self.shelf = _Plan(ledger)
        self.pieces = pieces(self.shelf)
        self._ledger = ledger
        self.items = [item for item in ledger.view.items if item.note.messages]
        self.shown = [self.pieces.piece(item.message) for item in self.items]
        self._by_piece = dict(zip(map(id, self.shown), self.items, strict=True))
        self._kept = list(self.shown)  # as long as they are here no other has the id of one

    def store(self, record: Record, part: Sequence[Piece], said: Sequence[Message], summarise: bool) -> Record:
        """Return `record` of `part` as it will be."""
        covers = [self._by_piece[id(piece)].note for piece in part]
        # A prompt with stubs of phases stands for these too; by itself it is its first line.
        alone = [
            Cover(cover.start, cover.head, cover.head, 1)
            if piece.holders and piece.message.role == "user" and not cover.summaries
            else cover
            for cover, piece in zip(covers, part, strict=True)
        ]
        shown = {id(message) for message in said}
        if record.kind == "phase":
            whole = self._spans(alone, covers, range(len(part)))
            # What gave way to a summary in the middle of the turn is no other archive's, nor in any prompt.
            prompts = 0 if covers[0].summaries else record.prompts
            own = self._spans(alone, covers, range(prompts, len(part)))
        else:
            whole = self._spans(covers, covers, range(len(part)))
            own = self._spans(alone, covers, [place for place, piece in enumerate(part) if id(piece.message) in shown])
        if any(cover.summaries for cover in covers):  # a summary stands for lines of archives too, which stay theirs
            own = _without(own, self._owned(holder for piece in part for holder in piece.holders))
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

    def changed(self, was: Sequence[Piece], now: Sequence[Piece], holder: str, start: int, stop: int) -> None:
        """Take down that the archive `holder` turned `was` into `now`, where what it archived went from `start` to
        `stop`: all before and behind that is the same."""
        same = len(was) - stop
        # Of what it archived a prompt may stay as it was.
        start = next(place for place in range(start, len(was)) if was[place] is not now[place])
        items = [self._by_piece[id(piece)] for piece in was[start:stop]]
        record = self.shelf.records[holder]
        first, last, cover = items[0].first, items[-1].last, joined([item.note for item in items])
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

    def _owned(self, holders: Iterable[str]) -> list[Span]:
        """Return the lines that the archives `holders` show as their own, or archives below them."""
        records = [self.shelf.records[holder] for holder in holders]
        for record in records:
            records += [self.shelf.records[id] for id in record.members if id in self.shelf.records]
        return [span for record in records for span in record.own]

    def _spans(self, used: Sequence[Cover], covers: Sequence[Cover], places: Iterable[int]) -> tuple[Span, ...]:
        return tuple(span for each in _joined_spans(used, covers, places) for span in self._ledger.sound(*each))


class _Plan(Shelf):
    """A ledger with what is planned on top of it."""

    def __init__(self, ledger: Ledger) -> None:
        super().__init__(ledger.folder)
        self.records = dict(ledger.records)
        self._path = ledger.path

    def messages(self, id: str) -> list[Stored]:
        return [Stored(message) for message in read_archive(self._path, self.records[id])]


def _without(spans: Iterable[Span], taken: Iterable[Span]) -> tuple[Span, ...]:
    """Return `spans` without what `taken` has of them."""
    left = list(spans)
    for start, length in taken:
        end = start + length
        parts = [part for at, size in left for part in ((at, min(start, at + size)), (max(end, at), at + size))]
        left = [(begin, stop - begin) for begin, stop in parts if begin < stop]
    return tuple(left)


def _joined_spans(used: Sequence[Cover], covers: Sequence[Cover], places: Iterable[int]) -> list[tuple[int, int]]:
    """Return from where to where the lines of `used[place]` go for each of `places`, ascending; neighbours are one.

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
    return spans
