"""The archives of a root's agents. The engine plans what to archive, and searches, reads and deletes archives.

The process of an agent sends requests (see `orch_worker.context.archiving`). The engine reads the agent's session file
in threads to answer these requests.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from pathlib import Path
from typing import Any, Final, TypeVar

import msgspec

from orch_protocol.agent.config import ArchivalConfig
from orch_protocol.agent.spec import AgentSpec, BackendSpec
from orch_protocol.core.archives import ArchiveSource, Collapse, Span
from orch_protocol.core.errors import AgentNotFoundError, StoreError
from orch_protocol.core.ids import new_id
from orch_protocol.core.messages import Message
from orch_protocol.core.taint import join_labels
from orch_protocol.services.archives.archiving import (
    ArchivePlan,
    PlanArchiving,
    SummarizeArchive,
    SummaryOrder,
    SummaryRequest,
)
from orch_protocol.services.archives.recall import SearchHit
from orch_worker.backends.model_families import estimator_of
from orch_worker.backends.prices import Prices
from orch_worker.conversation.stubs import stub_text
from orch_worker.policy.taint import labels_file, remember_file_taint
from orch_worker.session.archived_entries import lines_in, read_spans, sha256_of
from orch_worker.session.session_reader import NAME
from orch_worker.session.visible_messages import VisibleMessage
from orch_worker.system.files import io_error

from ..config.archival_profiles import archival_rules
from ..tree.agents.agent_record import archive_deleted_error
from .adapters import format_named
from .conversation_items import ConversationItem, ItemReader, profile_estimator
from .fold import RangeArchiver, summarized_text
from .store.archive_pool import ArchivePool, OpenArchives, ThreadRunner
from .store.catalog import ArchiveCatalog, ArchiveRecord, StoredMessage, containing
from .store.deletion import (
    HOLDERS,
    DeletedContent,
    delete_archives,
    finish_deletion,
    remove_sessions,
    session_bytes,
    turns_of_sessions,
)
from .store.prune import ArchivesToDelete, ContentToDelete, entries_to_delete
from .store.session_archives import LineRange, SessionArchives, join_ranges, read_archive
from .store.text_files import texts_missing, write_texts
from .summary import SummaryStyle, in_conversation_summary_prompts, requested_style, summary_prompts

__all__ = ["ArchiveDraft", "ArchiveEngine", "merge_hits", "writes_json"]

PARAGRAPH_NOTE: Final = (
    "summaries of archived turns are paragraphs, because models of {provider} do not write JSON reliably; "
    'archival.summary.style = "paragraph" removes this note'
)


def writes_json(backend: BackendSpec) -> bool:
    """Return whether the model of `backend` can be instructed to answer with JSON only."""
    return bool(backend.options.get("flags", {}).get("json", True))


# --- The draft of the next archives of a session ---


class ArchiveDraft:
    """A draft of the next archives of a session. The archives exist only after the agent has recorded the draft."""

    def __init__(self, archives: SessionArchives, make_reader: Callable[[ArchiveCatalog], ItemReader]) -> None:
        self.collapses: list[Collapse] = []
        self.to_summarize: list[str] = []
        self.catalog = _PlannedCatalog(archives)
        self.reader = make_reader(self.catalog)
        self._archives = archives
        self.visible = [item for item in archives.view.items if item.note.messages]
        self.items = [self.reader.make_item(item.message) for item in self.visible]
        self._visible_by_item = dict(zip(map(id, self.items), self.visible, strict=True))
        self._references = list(self.items)  # references keep the objects alive, so that their ids stay unique

    def store(
        self, record: ArchiveRecord, items: Sequence[ConversationItem], messages: Sequence[Message], summarize: bool
    ) -> ArchiveRecord:
        """Add an archive of `items` with the messages `messages` to the draft. Return its complete record."""
        ranges = [self._visible_by_item[id(item)].note for item in items]
        # If a prompt contains records of phases, its range includes the lines of these phases. The prompt itself is
        # only the first line.
        own_ranges = [
            LineRange(each.start, each.first_line_end, each.first_line_end, 1)
            if item.holders and item.message.role == "user" and not each.summaries
            else each
            for each, item in zip(ranges, items, strict=True)
        ]
        message_ids = {id(message) for message in messages}
        if record.kind == "phase":
            full_spans = self._spans(own_ranges, ranges, range(len(items)))
            # Lines that a compaction summary replaced within the turn belong to this archive, but not to a prompt.
            prompts = 0 if ranges[0].summaries else record.prompts
            own_spans = self._spans(own_ranges, ranges, range(prompts, len(items)))
        else:
            full_spans = self._spans(ranges, ranges, range(len(items)))
            own_spans = self._spans(
                own_ranges, ranges, [index for index, item in enumerate(items) if id(item.message) in message_ids]
            )
        counted_ranges = own_ranges if record.kind == "phase" else ranges
        count = sum(each.messages for each in dict.fromkeys(counted_ranges))
        if any(each.summaries for each in ranges):  # a summary may cover lines that belong to other archives
            holders = [holder for item in items for holder in item.holders]
            own_spans = _subtract_spans(own_spans, self._spans_of(holders))
            if others := [holder for holder in holders if holder not in record.members]:
                # The summary still shows these archives, and they can be deleted before this one.
                full_spans = _subtract_spans(full_spans, self._spans_of(others))
                count = sum(line.is_message for line in lines_in(self._archives.path, full_spans))
        complete = msgspec.structs.replace(
            record,
            id=new_id(),
            number=len(self.catalog.records) + 1,
            count=count,
            spans=full_spans,
            own=own_spans,
            # An era has no hash, because an era may be large. The members of the era have hashes, and each line has a
            # checksum.
            sha256="" if record.kind == "era" else sha256_of(read_spans(self._archives.path, full_spans)),
        )
        self.catalog.put(complete)
        if summarize:
            self.to_summarize.append(complete.id)
        return complete

    def record_change(
        self,
        old_items: Sequence[ConversationItem],
        new_items: Sequence[ConversationItem],
        holder: str,
        start: int,
        stop: int,
    ) -> None:
        """Record that the archive `holder` changed the conversation from `old_items` to `new_items`.

        Messages before `start`, and messages from `stop` on, are the same in both.
        """
        unchanged_count = len(old_items) - stop
        # The prompt at `start` may be unchanged.
        start = next(index for index in range(start, len(old_items)) if old_items[index] is not new_items[index])
        visible = [self._visible_by_item[id(record_item)] for record_item in old_items[start:stop]]
        record = self.catalog.records[holder]
        first, last, line_range = visible[0].first, visible[-1].last, join_ranges([item.note for item in visible])
        records = new_items[start : len(new_items) - unchanged_count]
        for record_item in records:
            self._visible_by_item[id(record_item)] = VisibleMessage(record_item.message, first, last, line_range)
        self._references += records
        metadata: dict[str, Any] = msgspec.to_builtins(record)
        self.collapses.append(
            Collapse(
                holder=holder,
                kind=record.kind,
                task=record.task,
                first=first,
                last=last,
                messages=tuple(record_item.message for record_item in records),
                spans=record.spans,
                sha256=record.sha256,
                record=metadata,
            )
        )

    def _spans_of(self, holders: Iterable[str]) -> list[Span]:
        """Return the lines that belong to the archives `holders` or to members of these archives."""
        records = [self.catalog.records[holder] for holder in holders]
        for record in records:
            records += [self.catalog.records[id] for id in record.members if id in self.catalog.records]
        return [span for record in records for span in record.own]

    def _spans(
        self, used: Sequence[LineRange], ranges: Sequence[LineRange], indexes: Iterable[int]
    ) -> tuple[Span, ...]:
        return tuple(
            span for each in _join_spans(used, ranges, indexes) for span in self._archives.undamaged_spans(*each)
        )


class _PlannedCatalog(ArchiveCatalog):
    """The recorded archives of a session, together with the archives in the draft."""

    def __init__(self, archives: SessionArchives) -> None:
        super().__init__(archives.folder)
        self.records = dict(archives.records)
        self._path = archives.path

    def messages(self, id: str) -> list[StoredMessage]:
        return [StoredMessage(message) for message in read_archive(self._path, self.records[id])]


def _subtract_spans(spans: Iterable[Span], removed: Iterable[Span]) -> tuple[Span, ...]:
    """Return `spans` without the bytes in `removed`."""
    remaining = list(spans)
    for start, length in removed:
        end = start + length
        parts = [
            part
            for offset, size in remaining
            for part in ((offset, min(start, offset + size)), (max(end, offset), offset + size))
        ]
        remaining = [(part_start, part_end - part_start) for part_start, part_end in parts if part_start < part_end]
    return tuple(remaining)


def _join_spans(
    used: Sequence[LineRange], ranges: Sequence[LineRange], indexes: Iterable[int]
) -> list[tuple[int, int]]:
    """Return the start and end of the ranges `used[index]` for each of `indexes`, with adjacent ranges joined.

    `indexes` is in ascending order. The file contains no other message between two adjacent items, unless only a part
    of the first item is used.
    """
    spans: list[tuple[int, int]] = []
    previous = -2
    for index in indexes:
        line_range = used[index]
        if index == previous + 1 and used[previous].end == ranges[previous].end:
            spans[-1] = (spans[-1][0], max(spans[-1][1], line_range.end))
        else:
            spans.append((line_range.start, line_range.end))
        previous = index
    return spans


T = TypeVar("T")


class ArchiveEngine:
    """The archives of the agents of one root.

    `config` is the archival configuration; `run_in_thread` runs a function in a thread.
    """

    def __init__(self, config: ArchivalConfig, run_in_thread: ThreadRunner) -> None:
        self.config = config
        self.rules = archival_rules(config)
        self._pool = ArchivePool(run_in_thread)
        self._reported_sizes: dict[str, int] = {}
        self._noted_providers: set[str] = set()

    async def close(self) -> None:
        """Wait at most 2 s for running requests, then close all archives."""
        await self._pool.close()

    async def plan(self, spec: AgentSpec, request: PlanArchiving, prices: Prices) -> ArchivePlan:
        """Return the parts of the agent's conversation that should be archived now. Raises StoreError."""
        return await self._pool.work(Path(spec.folder), self._plan_archiving, spec, request, prices)

    async def list_records(self, spec: AgentSpec) -> list[ArchiveRecord]:
        """Return all archives of the agent in the order of their creation, including deleted archives.

        Raises StoreError.
        """
        return await self._pool.work(Path(spec.folder), _load_records)

    def size(self, spec: AgentSpec) -> int:
        """Return the size of the agent's session file in bytes."""
        try:
            return (Path(spec.folder) / NAME).stat().st_size
        except OSError:
            return 0

    def note_reported(self, spec: AgentSpec, size: int) -> None:
        """Record that the tree knows the archives in the first `size` bytes of the agent's session file."""
        self._reported_sizes[spec.id] = size

    def may_have_new_archives(self, spec: AgentSpec) -> bool:
        """Return whether the agent's session file may contain archives that the tree does not know."""
        return self.size(spec) != self._reported_sizes.get(spec.id, 0)

    async def summarize(
        self, spec: AgentSpec, step: SummarizeArchive, backend: BackendSpec
    ) -> SummaryRequest | str | None:
        """Return the next step for the summary of an archive by the model of `backend`.

        The step is a request to the model, or the final text of the record. Return None if there is no summary. If the
        model may not be able to write valid JSON, the request asks for a paragraph.
        """
        style = requested_style(self.rules.summary_style) if writes_json(backend) else "paragraph"
        return await self._pool.work(Path(spec.folder), self._next_summary_step, step, style)

    def paragraph_note(self, backend: BackendSpec) -> str:
        """Return a note that summaries by `backend` are paragraphs although the configured style is "structured".

        Return "" if they have the configured style, or if this object returned the note for this provider before.
        """
        provider = backend.provider
        if self.rules.summary_style != "structured" or writes_json(backend) or provider in self._noted_providers:
            return ""
        self._noted_providers.add(provider)
        return PARAGRAPH_NOTE.format(provider=provider)

    async def search(
        self, spec: AgentSpec, query: str, limit: int, among: Collection[str] | None = None
    ) -> list[SearchHit]:
        """Return up to `limit` passages for `query` in the agent's archives, best first.

        `among` restricts the search to archives with these ids. Raises StoreError, ConfigError.
        """
        return await self._pool.work(Path(spec.folder), _search_archives, query, limit, among)

    async def passages(self, spec: AgentSpec, question: str, era: str, limit: int) -> list[SearchHit]:
        """Return up to `limit` passages that may answer `question`, from the archives below the era `era`."""
        return await self._pool.work(Path(spec.folder), _passages, question, era, limit)

    async def list_shown(self, spec: AgentSpec, given: Collection[str] | None = None) -> list[ArchiveRecord]:
        """Return the archives that the agent's conversation shows, and those of abandoned branches.

        `given` restricts the archives to these ids; those that belong to another of them are left out. Raises
        StoreError.
        """
        return await self._pool.work(Path(spec.folder), _load_shown, given)

    async def write_texts(self, spec: AgentSpec) -> None:
        """Write the agent's archives as text files in its folder, and record the taint labels of these files.

        Raises ConfigError, StoreError.
        """
        await self._pool.work(Path(spec.folder), _write_texts)

    def texts_missing(self, spec: AgentSpec) -> bool:
        """Return whether the text files of the agent's archives have to be written."""
        return texts_missing(Path(spec.folder))

    async def read_stored(self, spec: AgentSpec, id: str, count: int) -> list[Message]:
        """Return the first `count` messages of an archive, also of one that was merged into another archive.

        Raises AgentNotFoundError, AmbiguousRefError, ArchiveDeletedError, DamagedError, StoreError.
        """
        return await self._pool.work(Path(spec.folder), _read_stored, id, count)

    async def read(
        self, spec: AgentSpec, id: str, first: int, last: int | None, given: Collection[str] | None = None
    ) -> list[Message]:
        """Return the messages `first` to `last` of an archive of the agent. The first message has the number 1.

        `given` restricts the archives to these ids. Raises AgentNotFoundError, which names the archive into which `id`
        was merged. Raises AmbiguousRefError, ArchiveDeletedError, DamagedError, StoreError.
        """
        return await self._pool.work(Path(spec.folder), _read, id, first, last, given)

    async def record(self, spec: AgentSpec, id: str) -> ArchiveRecord:
        """Return the record of the agent's archive `id`.

        Raises AgentNotFoundError, AmbiguousRefError, ArchiveDeletedError.
        """
        return await self._pool.work(Path(spec.folder), _find_archive, id)

    async def content_to_delete(self, spec: AgentSpec, which: ArchivesToDelete) -> tuple[ContentToDelete, int]:
        """Return the content that a deletion of those of the agent's archives that `which` selects would remove.

        The second value is the total size in bytes of the sessions of these archives' holders. Raises StoreError.
        """
        return await self._pool.work(Path(spec.folder), _deletion_candidates, which)

    async def delete(self, spec: AgentSpec, which: ArchivesToDelete, when: str) -> ContentToDelete:
        """Permanently delete those of the agent's archives that `which` selects. `when` is the time of the deletion.

        Neither the agent nor the holders of these archives may have a process. The caller must call `finish_deletion`
        afterwards. Raises StoreError. Raises LockedError if the agent or a holder has a process.
        """
        return await self._pool.work(Path(spec.folder), _delete_archives, which, when)

    async def finish_deletion(self, spec: AgentSpec, *, rewritten: bool) -> DeletedContent:
        """Remove the data that a deletion has left. Return all deleted content of the agent's session.

        If `rewritten` is True, remove data in other files of the session folder too. Raises LockedError, StoreError.
        """
        return await self._pool.work(Path(spec.folder), _finish_deletion, rewritten)

    async def turns_of_holders(self, spec: AgentSpec, ids: Collection[str]) -> dict[str, set[str]]:
        """Return the ids of the queries to the holders `ids` of the agent's archives, by holder. Raises StoreError."""
        return await self._pool.work(Path(spec.folder), _turns_of_holders, ids)

    async def remove_holder_sessions(self, spec: AgentSpec, ids: Collection[str]) -> None:
        """Remove the sessions of the holders `ids` of the agent's archives. Raises LockedError, StoreError."""
        await self._pool.work(Path(spec.folder), _remove_holder_sessions, ids)

    async def replace_session_file(self, spec: AgentSpec, change: Callable[[], T]) -> T:
        """Call `change`, which replaces the agent's session file.

        Then read the new file. Return the result of `change`.
        """
        return await self._pool.work(Path(spec.folder), _reindex, change)

    async def forget(self, spec: AgentSpec) -> None:
        """Close the agent's files and discard the data that was read from them."""
        if (folder := Path(spec.folder)) in self._pool.folders():
            await self._pool.work(folder, OpenArchives.close)
        self._reported_sizes.pop(spec.id, None)

    async def source(self, spec: AgentSpec, holder: str) -> ArchiveSource:
        """Return the location of the messages in the archive `holder` of the agent.

        Raises AgentNotFoundError, ArchiveDeletedError.
        """
        return await self._pool.work(Path(spec.folder), _source, spec, holder)

    # The following methods run in threads.

    def _plan_archiving(
        self, opened: OpenArchives, spec: AgentSpec, request: PlanArchiving, prices: Prices
    ) -> ArchivePlan:
        opened.catch_up()
        format = format_named("orch")
        estimator = profile_estimator(self.config.profile, estimator_of(spec.backend, request.factor))
        draft = ArchiveDraft(opened.archives, lambda catalog: ItemReader(format, catalog, estimator))
        items_before, visible = draft.items, draft.visible
        # If another turn has begun, the messages of that turn stay in the conversation.
        stop_reason = request.stop_reason if visible and visible[-1].last == request.last else None
        other_tokens = max(0, request.context_tokens - sum(item.tokens for item in items_before))
        rules = self.rules.within(max(0, request.window - other_tokens)) if request.window else self.rules
        RangeArchiver(draft.reader, rules, draft.store, draft.record_change).fold_all(
            items_before,
            self.config.trigger,
            prices,
            stop_reason,
            other_tokens=other_tokens,
            summaries=request.summaries and rules.summary_style != "none",
            depth=spec.depth,
            every_turn=request.now,
        )
        orders = (self._order(draft.catalog.records[holder], request, prices) for holder in draft.to_summarize)
        return ArchivePlan(tuple(draft.collapses), tuple(orders))

    def _order(self, record: ArchiveRecord, request: PlanArchiving, prices: Prices) -> SummaryOrder:
        """Return whether the summary of `record` is requested within the cached conversation or in a separate request.

        The cheaper way is chosen.
        """
        separate_cost = record.tokens * prices.fresh
        in_conversation = request.with_conversation and self.config.summary.model is None
        return SummaryOrder(
            record.id, with_conversation=in_conversation and request.context_tokens * prices.read < separate_cost
        )

    def _next_summary_step(
        self, opened: OpenArchives, step: SummarizeArchive, style: SummaryStyle
    ) -> SummaryRequest | str | None:
        opened.catch_up()
        record = opened.archives.records.get(step.holder)
        if record is None:
            raise AgentNotFoundError(f"no archive {step.holder!r} in {opened.archives.path}")
        if step.answer is None:
            messages = [stored.message for stored in opened.archives.messages(record.id)]
            opened.summary_requests[record.id] = (
                in_conversation_summary_prompts(record.kind, record.task, messages, style)
                if step.with_conversation
                else summary_prompts(messages, style, self.config.summary.model)
            )
        # Remove the generator first, because a generator that raised cannot be continued.
        requests = opened.summary_requests.pop(record.id, None)
        if requests is None:
            raise StoreError(
                f"no summary of the archive {step.holder} was requested, or the request is too old; "
                "request the summary again"
            )
        try:
            request = next(requests) if step.answer is None else requests.send(step.answer)
        except StopIteration as end:
            if not end.value:
                return None
            return stub_text(record.kind, record.id, summarized_text(record, end.value), record.answer)
        opened.summary_requests[record.id] = requests
        return request


def _load_records(opened: OpenArchives) -> list[ArchiveRecord]:
    opened.catch_up()
    return list(opened.archives.records.values())


def _find_archive(opened: OpenArchives, id: str) -> ArchiveRecord:
    opened.catch_up()
    record = opened.archives.find(id)
    if record.deleted:
        raise archive_deleted_error(record.id, record.deleted)
    return record


def _deletion_candidates(opened: OpenArchives, which: ArchivesToDelete) -> tuple[ContentToDelete, int]:
    opened.catch_up()
    content = entries_to_delete(opened.archives, which)
    ids = [record.id for record in content.records]
    return content, session_bytes(opened.archives.folder, [*ids, *containing(opened.archives.records.values(), ids)])


def _delete_archives(opened: OpenArchives, which: ArchivesToDelete, when: str) -> ContentToDelete:
    opened.summary_requests.clear()
    return delete_archives(opened.archives, opened.search, which, when)


def _finish_deletion(opened: OpenArchives, rewritten: bool) -> DeletedContent:
    return finish_deletion(opened.archives, rewritten=rewritten)


def _turns_of_holders(opened: OpenArchives, ids: Collection[str]) -> dict[str, set[str]]:
    folder = opened.archives.folder / HOLDERS
    try:
        return turns_of_sessions(folder, ids)
    except OSError as error:
        raise io_error("read sessions in", folder, error) from error


def _remove_holder_sessions(opened: OpenArchives, ids: Collection[str]) -> None:
    folder = opened.archives.folder / HOLDERS
    try:
        remove_sessions(folder, ids)
    except OSError as error:
        raise io_error("delete sessions in", folder, error) from error


def _reindex(opened: OpenArchives, change: Callable[[], T]) -> T:
    opened.summary_requests.clear()
    opened.search.forget()
    try:
        return change()
    finally:
        opened.archives.forget()
        opened.archives.catch_up()


def _source(opened: OpenArchives, spec: AgentSpec, holder: str) -> ArchiveSource:
    record = _find_archive(opened, holder)
    if record.kind == "era":
        return ArchiveSource(spec.folder, spec.id, record.kind, record.task, shown=opened.archives.era_messages(record))
    return ArchiveSource(spec.folder, spec.id, record.kind, record.task, record.spans, record.sha256)


def _load_shown(opened: OpenArchives, given: Collection[str] | None) -> list[ArchiveRecord]:
    opened.catch_up()
    return [opened.archives.records[id] for id in opened.search.shown(given).ids]


def _search_archives(opened: OpenArchives, query: str, limit: int, among: Collection[str] | None) -> list[SearchHit]:
    opened.catch_up()
    return opened.search.search(query, limit, among) if opened.archives.records else []


def _passages(opened: OpenArchives, question: str, era: str, limit: int) -> list[SearchHit]:
    return opened.search.passages(question, _find_archive(opened, era).id, limit)


def _read_stored(opened: OpenArchives, id: str, count: int) -> list[Message]:
    return opened.archives.read(_find_archive(opened, id).id, 1, count)


def _write_texts(opened: OpenArchives) -> None:
    opened.catch_up()
    archives, shown = opened.archives, opened.search.shown()
    try:
        folder = write_texts(archives, shown)
    except OSError as error:
        raise io_error("write the texts of archives in", archives.folder, error) from error
    labels = join_labels((), (label for id in shown.ids for label in archives.records[id].marks))
    remember_file_taint(labels_file(archives.folder), [str(folder)], labels, replace_labels=True)


def _read(opened: OpenArchives, id: str, first: int, last: int | None, given: Collection[str] | None) -> list[Message]:
    record = _find_archive(opened, id)
    opened.search.shown(given).check(record)
    return opened.archives.read(record.id, first, last)


def merge_hits(hits: Sequence[Sequence[SearchHit]], limit: int) -> list[SearchHit]:
    """Return the best `limit` of the search hits from several agents.

    Exact hits come first. Hits of different agents alternate.
    """
    rows = [hit for rank in range(limit) for found in hits if rank < len(found) for hit in [found[rank]]]
    return sorted(rows, key=lambda hit: not hit.exact)[:limit]
