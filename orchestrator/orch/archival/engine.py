"""The archives of a root's agents: what is to leave which conversation, and how all of it is found again.

An agent's process asks (see `orch_worker.context.archiving`); what follows is worked out in threads, from its
session file.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Sequence
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from orch_protocol.agent.config import ArchivalConfig
from orch_protocol.agent.spec import AgentSpec
from orch_protocol.core.archives import ArchiveSource, Collapse, Span
from orch_protocol.core.errors import AgentNotFoundError, StoreError
from orch_protocol.core.ids import new_id
from orch_protocol.core.messages import Message
from orch_protocol.services.archiving import ArchivePlan, PlanArchiving, SummarizeArchive, SummaryOrder, SummaryRequest
from orch_protocol.services.recall import SearchHit
from orch_worker.backends.model_families import ratios_of
from orch_worker.conversation.receipt import with_summary
from orch_worker.conversation.stubs import stub_text
from orch_worker.conversation.tokens import TokenEstimator
from orch_worker.session.log_reader import read_spans, sha256_of
from orch_worker.session.transcript import NAME
from orch_worker.session.visible_messages import VisibleMessage

from ..config.archival_profiles import rules_of
from ..tree.agents.agent_record import archive_deleted_error
from .adapters import format_named
from .conversation_items import ConversationItem, ItemReader
from .fold import RangeArchiver
from .plan.economics import Prices
from .store.archive_pool import ArchivePool, Do, OpenArchives
from .store.catalog import ArchiveCatalog, ArchiveRecord, StoredMessage
from .store.deletion import DeletionResult, delete_archives, session_bytes
from .store.prune import Doomed, entries_to_delete
from .store.session_archives import LineRange, SessionArchives, join_ranges, read_archive
from .summary import SummaryStyle, in_conversation_summary_prompts, summary_prompts

__all__ = ["ArchiveDraft", "ArchiveEngine", "merge_hits"]


# --- What is to be archived next of what a ledger shows ---


class ArchiveDraft:
    """What is to be archived next of what a ledger shows. Nothing of it is true before the agent has it on record."""

    def __init__(self, ledger: SessionArchives, pieces: Callable[[ArchiveCatalog], ItemReader]) -> None:
        self.collapses: list[Collapse] = []
        self.summarise: list[str] = []
        self.shelf = _PlannedConversation(ledger)
        self.pieces = pieces(self.shelf)
        self._ledger = ledger
        self.items = [item for item in ledger.view.items if item.note.messages]
        self.shown = [self.pieces.piece(item.message) for item in self.items]
        self._by_piece = dict(zip(map(id, self.shown), self.items, strict=True))
        self._kept = list(self.shown)  # as long as they are here no other has the id of one

    def store(
        self, record: ArchiveRecord, part: Sequence[ConversationItem], said: Sequence[Message], summarise: bool
    ) -> ArchiveRecord:
        """Return `record` of `part` as it will be."""
        covers = [self._by_piece[id(piece)].note for piece in part]
        # A prompt with stubs of phases stands for these too; by itself it is its first line.
        alone = [
            LineRange(cover.start, cover.head, cover.head, 1)
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
            sha256="" if record.kind == "era" else sha256_of(read_spans(self._ledger.path, whole)),
        )
        self.shelf.keep(full)
        if summarise:
            self.summarise.append(full.id)
        return full

    def changed(
        self, was: Sequence[ConversationItem], now: Sequence[ConversationItem], holder: str, start: int, stop: int
    ) -> None:
        """Take down that the archive `holder` turned `was` into `now`, where what it archived went from `start` to
        `stop`: all before and behind that is the same."""
        same = len(was) - stop
        # Of what it archived a prompt may stay as it was.
        start = next(place for place in range(start, len(was)) if was[place] is not now[place])
        items = [self._by_piece[id(piece)] for piece in was[start:stop]]
        record = self.shelf.records[holder]
        first, last, cover = items[0].first, items[-1].last, join_ranges([item.note for item in items])
        stubs = now[start : len(now) - same]
        for piece in stubs:
            self._by_piece[id(piece)] = VisibleMessage(piece.message, first, last, cover)
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

    def _spans(self, used: Sequence[LineRange], covers: Sequence[LineRange], places: Iterable[int]) -> tuple[Span, ...]:
        return tuple(span for each in _joined_spans(used, covers, places) for span in self._ledger.sound(*each))


class _PlannedConversation(ArchiveCatalog):
    """A ledger with what is planned on top of it."""

    def __init__(self, ledger: SessionArchives) -> None:
        super().__init__(ledger.folder)
        self.records = dict(ledger.records)
        self._path = ledger.path

    def messages(self, id: str) -> list[StoredMessage]:
        return [StoredMessage(message) for message in read_archive(self._path, self.records[id])]


def _without(spans: Iterable[Span], taken: Iterable[Span]) -> tuple[Span, ...]:
    """Return `spans` without what `taken` has of them."""
    left = list(spans)
    for start, length in taken:
        end = start + length
        parts = [part for at, size in left for part in ((at, min(start, at + size)), (max(end, at), at + size))]
        left = [(begin, stop - begin) for begin, stop in parts if begin < stop]
    return tuple(left)


def _joined_spans(
    used: Sequence[LineRange], covers: Sequence[LineRange], places: Iterable[int]
) -> list[tuple[int, int]]:
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


T = TypeVar("T")


class ArchiveEngine:
    """What the agents of one root have archived, under `config`. `do` runs a function in a thread."""

    def __init__(self, config: ArchivalConfig, do: Do) -> None:
        self.config = config
        self.rules = rules_of(config)
        self._stacks = ArchivePool(do)
        self._told: dict[str, int] = {}

    async def close(self) -> None:
        """Give everything up, when what is under way is done (at most 2 s)."""
        await self._stacks.close()

    async def plan(self, spec: AgentSpec, ask: PlanArchiving, prices: Prices) -> ArchivePlan:
        """Return what of the agent's conversation is to be put on record as archived now. Raises StoreError."""
        return await self._stacks.work(Path(spec.folder), self._planned, spec, ask, prices)

    async def known(self, spec: AgentSpec) -> list[ArchiveRecord]:
        """Return every archive that the agent has on record, in order, deleted ones too. Raises StoreError."""
        return await self._stacks.work(Path(spec.folder), _load_records)

    def size(self, spec: AgentSpec) -> int:
        """Return how large the agent's file is, in bytes."""
        try:
            return (Path(spec.folder) / NAME).stat().st_size
        except OSError:
            return 0

    def told(self, spec: AgentSpec, size: int) -> None:
        """Take note that everybody knows of the archives in the first `size` bytes of the agent's file."""
        self._told[spec.id] = size

    def grew(self, spec: AgentSpec) -> bool:
        """Return whether the agent may have archives on record that not everybody knows of."""
        return self.size(spec) != self._told.get(spec.id, 0)

    async def summarise(
        self, spec: AgentSpec, step: SummarizeArchive, *, json: bool = True
    ) -> SummaryRequest | str | None:
        """Return what a model is to be asked next about an archive; or the text of its stub; or None: there is none.

        Without `json` the model is asked for a paragraph whatever is configured: it cannot be trusted with JSON.
        """
        style = self.config.summary.style if json else "paragraph"
        return await self._stacks.work(Path(spec.folder), self._asked, step, style)

    async def search(
        self, spec: AgentSpec, query: str, limit: int, among: Container[str] | None = None
    ) -> list[SearchHit]:
        """Return up to `limit` places for `query` in the archives of the agent, the best first. Raises StoreError.

        With `among` only archives with these ids are searched.
        """
        return await self._stacks.work(Path(spec.folder), _searched, query, limit, among)

    async def passages(self, spec: AgentSpec, question: str, era: str, limit: int) -> list[SearchHit]:
        """Return up to `limit` passages below `era`, an archive of the agent, that may answer `question`."""
        return await self._stacks.work(Path(spec.folder), _passages, question, era, limit)

    async def read(self, spec: AgentSpec, id: str, first: int, last: int | None) -> list[Message]:
        """Return the messages `first` to `last` (from 1) of an archive of the agent.

        Raises AgentNotFoundError, AmbiguousRefError, ArchiveDeletedError, DamagedError, StoreError.
        """
        return await self._stacks.work(Path(spec.folder), _read, id, first, last)

    async def record(self, spec: AgentSpec, id: str) -> ArchiveRecord:
        """Return what is known of the archive `id` of the agent.

        Raises AgentNotFoundError, AmbiguousRefError, ArchiveDeletedError.
        """
        return await self._stacks.work(Path(spec.folder), _find_archive, id)

    async def doomed(self, spec: AgentSpec, before: str) -> tuple[Doomed, int]:
        """Return what would go with the archives of the agent that were made at `before` (ISO 8601) or earlier, and how
        large their holders' own sessions are, in bytes. Raises StoreError."""
        return await self._stacks.work(Path(spec.folder), _deletion_candidates, before)

    async def delete(self, spec: AgentSpec, before: str, when: str) -> DeletionResult:
        """Delete these archives for good, at the time `when`. Neither agent nor holders have a process.

        Raises LockedError when one has, StoreError: then nothing was deleted, or what is left goes the next time.
        """
        return await self._stacks.work(Path(spec.folder), _delete_archives, before, when)

    async def renew(self, spec: AgentSpec, change: Callable[[], T]) -> T:
        """Return what `change` returns, which puts another file in the place of the agent's; all is known anew then."""
        return await self._stacks.work(Path(spec.folder), _reindex, change)

    async def forget(self, spec: AgentSpec) -> None:
        """Know nothing more of the agent, and have none of its files open."""
        if (folder := Path(spec.folder)) in self._stacks.folders():
            await self._stacks.work(folder, OpenArchives.close)
        self._told.pop(spec.id, None)

    async def source(self, spec: AgentSpec, holder: str) -> ArchiveSource:
        """Return where `holder`, an archive of the agent, has its messages.

        Raises AgentNotFoundError, ArchiveDeletedError.
        """
        return await self._stacks.work(Path(spec.folder), _source, spec, holder)

    # In threads.

    def _planned(self, shelves: OpenArchives, spec: AgentSpec, ask: PlanArchiving, prices: Prices) -> ArchivePlan:
        shelves.catch_up()
        own = format_named("orch")
        estimator = (
            TokenEstimator() if self.config.profile == "seed" else TokenEstimator(ratios_of(spec.backend), ask.factor)
        )
        draft = ArchiveDraft(shelves.ledger, lambda shelf: ItemReader(own, shelf, estimator))
        shown, items = draft.shown, draft.items
        # A turn that has begun since is not the one that ended: what it has done so far stays.
        ended = ask.stop_reason if items and items[-1].last == ask.last else None
        RangeArchiver(draft.pieces, self.rules, draft.store, draft.changed).fold_all(
            shown,
            self.config.trigger,
            prices,
            ended,
            beside=max(0, ask.context_tokens - sum(piece.tokens for piece in shown)),
            summaries=ask.summaries,
            depth=spec.depth,
            now=ask.now,
        )
        orders = (self._order(draft.shelf.records[holder], ask, prices) for holder in draft.summarise)
        return ArchivePlan(tuple(draft.collapses), tuple(orders))

    def _order(self, record: ArchiveRecord, ask: PlanArchiving, prices: Prices) -> SummaryOrder:
        """Return where asking about an archive costs least: beside the conversation that is cached, or apart."""
        apart = record.tokens * prices.fresh
        mine = ask.beside and self.config.summary.model is None and record.kind == "turn"
        return SummaryOrder(record.id, beside=mine and ask.context_tokens * prices.read < apart)

    def _asked(self, shelves: OpenArchives, step: SummarizeArchive, style: SummaryStyle) -> SummaryRequest | str | None:
        shelves.catch_up()
        record = shelves.ledger.records.get(step.holder)
        if record is None:
            raise AgentNotFoundError(f"no archive {step.holder!r} in {shelves.ledger.path}")
        if step.answer is None and step.beside:
            shelves.asking[record.id] = in_conversation_summary_prompts(record.task, style)
        elif step.answer is None:
            said = [stored.message for stored in shelves.ledger.messages(record.id)]
            shelves.asking[record.id] = summary_prompts(said, style, self.config.summary.model)
        # What is left of it when this fails is of no use.
        asking = shelves.asking.pop(record.id, None)
        if asking is None:
            raise StoreError(f"nothing was asked about the archive {step.holder}, or too long ago: ask anew")
        try:
            request = next(asking) if step.answer is None else asking.send(step.answer)
        except StopIteration as over:
            if not over.value:
                return None
            return stub_text(record.kind, record.id, with_summary(record.receipt, over.value), record.answer)
        shelves.asking[record.id] = asking
        return request


def _load_records(shelves: OpenArchives) -> list[ArchiveRecord]:
    shelves.catch_up()
    return list(shelves.ledger.records.values())


def _find_archive(shelves: OpenArchives, id: str) -> ArchiveRecord:
    shelves.catch_up()
    record = shelves.ledger.find(id)
    if record.deleted:
        raise archive_deleted_error(record.id, record.deleted)
    return record


def _deletion_candidates(shelves: OpenArchives, before: str) -> tuple[Doomed, int]:
    shelves.catch_up()
    going = entries_to_delete(shelves.ledger, before)
    return going, session_bytes(shelves.ledger.folder, [record.id for record in going.records])


def _delete_archives(shelves: OpenArchives, before: str, when: str) -> DeletionResult:
    shelves.asking.clear()
    return delete_archives(shelves.ledger, shelves.search, before, when)


def _reindex(shelves: OpenArchives, change: Callable[[], T]) -> T:
    shelves.asking.clear()
    shelves.search.forget()
    try:
        return change()
    finally:
        shelves.ledger.forget()
        shelves.ledger.catch_up()


def _source(shelves: OpenArchives, spec: AgentSpec, holder: str) -> ArchiveSource:
    record = _find_archive(shelves, holder)
    if record.kind == "era":
        return ArchiveSource(spec.folder, spec.id, record.kind, record.task, shown=shelves.ledger.shown(record))
    return ArchiveSource(spec.folder, spec.id, record.kind, record.task, record.spans, record.sha256)


def _searched(shelves: OpenArchives, query: str, limit: int, among: Container[str] | None) -> list[SearchHit]:
    shelves.catch_up()
    return shelves.search.search(query, limit, among) if shelves.ledger.records else []


def _passages(shelves: OpenArchives, question: str, era: str, limit: int) -> list[SearchHit]:
    below = {record.id for record in shelves.ledger.below(_find_archive(shelves, era))}
    return shelves.search.passages(question, below, limit)


def _read(shelves: OpenArchives, id: str, first: int, last: int | None) -> list[Message]:
    record = _find_archive(shelves, id)
    return shelves.ledger.read(record.id, first, last)


def merge_hits(hits: Sequence[Sequence[SearchHit]], limit: int) -> list[SearchHit]:
    """Return the best `limit` of what several agents' archives found: exact hits first, the agents taking turns."""
    rows = [hit for place in range(limit) for found in hits if place < len(found) for hit in [found[place]]]
    return sorted(rows, key=lambda hit: not hit.exact)[:limit]
