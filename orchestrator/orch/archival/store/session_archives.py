"""The archives of one running agent, read from the session file while the agent writes to the file.

Archived messages stay at their position in the file. An archive consists of lines of the file and its metadata. Only
the agent writes to the file.
"""

from __future__ import annotations

import contextlib
from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence
from operator import itemgetter
from pathlib import Path
from typing import BinaryIO, Final, TypeAlias, cast

import msgspec
from msgspec import Struct

from orch_protocol.core.archives import Collapse, Span
from orch_protocol.core.errors import DamagedError, StoreError
from orch_protocol.core.messages import Message, assistant, user
from orch_protocol.core.taint import TaintLabel
from orch_protocol.core.taint import join_labels as joined_marks
from orch_protocol.session.entries import (
    AnyMessageEntry,
    ArchiveEntry,
    BranchSummary,
    CompactionEntry,
    CustomMessage,
    MessageEntry,
    TaintEntry,
    TurnEndEntry,
    UpgradeEntry,
)
from orch_worker.context.holder_query import entry_message
from orch_worker.conversation.stubs import deletion_marker, holders_in, is_brief, stub_text, stubs_in
from orch_worker.session.archived_entries import entries_in, lines_in, messages_in
from orch_worker.session.entry_codec import (
    HEADER_PREFIX,
    UnknownEntry,
    decode_entry,
    decode_link,
    line_prefixes,
)
from orch_worker.session.entry_tree import EntryTree
from orch_worker.session.log.log_reader import LogCursor
from orch_worker.session.session_reader import NAME
from orch_worker.session.visible_messages import VisibleMessages

from .catalog import ArchivedMessage, ArchiveRecord, SearchableCatalog, StoredMessage

__all__ = ["LineRange", "SessionArchives", "join_ranges", "read_archive"]

_TreeEntry: TypeAlias = (
    UnknownEntry | AnyMessageEntry | ArchiveEntry | UpgradeEntry | CompactionEntry | TurnEndEntry | TaintEntry
)
_DECODED_PREFIXES: Final = line_prefixes(AnyMessageEntry | ArchiveEntry | UpgradeEntry | CompactionEntry | TaintEntry)
_TURN_END_PREFIXES: Final = line_prefixes(TurnEndEntry)
_DELETED_FIELD: Final = b',"deleted":"'
"""A part of each entry for the end of a turn whose reply was deleted. Other entries for ends of turns are not decoded.
"""


class _PathTracker(Struct, frozen=True):
    """The path from the root of the entry tree to the last entry of a file.

    `on_path` marks the entries on the path. `missing_parents` maps the positions of entries to the ids of their missing
    parents.
    """

    on_path: bytearray
    missing_parents: dict[int, str]


class LineRange(Struct, frozen=True):
    """The lines of the session file that a visible message represents: the bytes `start` to `end`.

    The first line ends at `first_line_end`. `messages` is the number of messages on these lines, 0 for a missing entry.
    `contains_message` is True if the line contains the visible message itself. A compaction summary represents all
    lines that it replaced. `summaries` contains the offsets of the entry of a compaction summary and of the earlier
    summaries that it replaced. These entries follow the lines.
    """

    start: int
    end: int
    first_line_end: int
    messages: int
    contains_message: bool = False
    summaries: tuple[int, ...] = ()


class SessionArchives(SearchableCatalog):
    """The archives of the agent whose session is in `folder`, and the agent's visible conversation, as recorded in the
    file.
    """

    def __init__(self, folder: Path, name: str = NAME) -> None:
        super().__init__(folder)
        self.path = folder / name
        self.forget()

    def forget(self) -> None:
        """Discard all data. The next call of `catch_up` reads the whole file."""
        self.records.clear()
        self.order.clear()
        self.view: VisibleMessages[LineRange] = VisibleMessages()
        self._cursor = LogCursor()
        self._leaf: str | None = None
        # `_left_path` is True if the conversation went back to an earlier entry. It is then unknown which entries are
        # visible, so the file is read again. In this second reading, `_path_tracker` is the path to the last entry, and
        # `_entry_index` is the number of entries read so far.
        self._left_path, self._path_tracker, self._entry_index = False, _PathTracker(bytearray(), {}), 0
        self._labels: tuple[TaintLabel, ...] = ()  # all labels so far, on any branch
        self.deleted_replies: dict[str, str] = {}
        """The times at which replies were deleted, by query id."""
        self.summaries: dict[int, str] = {}
        """For each compaction entry whose summary was archived, by offset: the id of the archive."""
        self.damaged: list[Span] = []
        """Damaged lines, in ascending order."""
        # Damaged lines, and lines that are not on the path of the conversation.
        self._skipped: list[Span] = []

    def catch_up(self) -> list[ArchiveRecord]:
        """Read the entries that were appended since the last call, and return the new archives.

        An incomplete line at the end is left for the next call. If the file was replaced or shortened, all data is
        discarded and all archives are new. Raises StoreError if the file cannot be read.
        """
        try:
            with open(self.path, "rb") as file:
                if not self._cursor.is_valid(file):
                    self.forget()
                old_count = len(self.records)
                self._read_lines(file)
                while self._left_path:
                    self._reread(file)
        except FileNotFoundError:
            self.forget()
            return []
        except OSError as error:
            raise StoreError(f"cannot read {self.path}: {error.strerror}") from error
        return [self.by_number(number) for number in range(old_count + 1, len(self.records) + 1)]

    def _reread(self, file: BinaryIO) -> None:
        """Read the whole file again.

        The first pass finds the path to the last entry. The second pass follows this path.
        """
        tree, missing_parents = EntryTree(), dict[int, str]()
        for line in LogCursor().read(file):
            if line.object is None or line.object.startswith(HEADER_PREFIX):
                continue
            link = decode_link(line.object)
            if link is None:
                continue
            if link.parent_id is not None and tree.missing(link.parent_id):
                missing_parents[len(tree)] = link.parent_id
                tree.add(link.parent_id, tree.leaf)
            tree.add(link.id, link.parent_id)
        self.forget()
        self._path_tracker = _PathTracker(tree.path(len(tree) - 1), missing_parents)
        self._read_lines(file)
        self._path_tracker = _PathTracker(bytearray(), {})

    def _read_lines(self, file: BinaryIO) -> None:
        for line in self._cursor.read(file):
            self._read_line(line.offset, line.end, line.object)

    def messages(self, id: str) -> list[StoredMessage]:
        return [StoredMessage(message) for message in self.read(id)]

    def read(self, id: str, first: int = 1, last: int | None = None) -> list[Message]:
        """Return the messages `first` to `last` of the archive `id`, without a limit on size. The first message has the
        number 1.

        Raises DamagedError if a message is damaged, and StoreError.
        """
        return read_archive(self.path, self.records[id], first, last)

    def own_messages(self, record: ArchiveRecord) -> list[Message | None]:
        if record.deleted:
            return []  # an archived prompt that the conversation still shows no longer belongs to an archive
        try:
            return [_searchable(stored.entry) for stored in entries_in(self.path, record.own)]
        except DamagedError:
            return []  # reading the archive raises the error; other archives remain searchable

    def entries(self, record: ArchiveRecord) -> list[ArchivedMessage]:
        places = {
            line.offset: (each.id, index)
            for each in (record, *self.descendants(record))
            for index, line in enumerate(line for line in lines_in(self.path, each.own) if line.is_message)
        }
        return [
            ArchivedMessage(*places.get(stored.offset, ("", 0)), entry_message(stored))
            for stored in entries_in(self.path, record.spans)
        ]

    def conversation(self) -> Sequence[Message] | None:
        return [item.message for item in self.view.items]

    def repeated(self, ids: Sequence[str]) -> set[str]:
        spans = sorted(span for id in ids for span in self.records[id].spans)
        starts = [start for start, _ in spans]

        def is_inside(offset: int) -> bool:
            index = bisect_right(starts, offset) - 1
            return index >= 0 and offset < sum(spans[index])

        return {record.id for record in self.records.values() if any(is_inside(start) for start, _ in record.own)}

    def own_spans(self, record: ArchiveRecord) -> tuple[Path, Sequence[Span]]:
        return self.path, record.own

    def visible_offsets(self) -> set[int]:
        """Return the offsets of the lines whose text the conversation shows.

        The lines contain messages, or prompts of turns with phases.
        """
        offsets = set()
        for item in self.view.items:
            records = len(holders_in(item.message))
            has_phases = item.message.role == "user" and 0 < records < len(item.message.content)
            if item.note.contains_message or (has_phases and not item.note.summaries):
                offsets.add(item.note.start)
        return offsets

    def visible_records(self) -> set[str]:
        """Return the ids of the archives whose records the conversation shows."""
        return {holder for item in self.view.items for holder in holders_in(item.message)}

    def brief_records(self) -> set[str]:
        """Return those ids of `visible_records` whose task appears in a compaction summary of the conversation."""
        texts = (text for item in self.view.items for text in stubs_in(item.message).items())
        return {holder for holder, text in texts if is_brief(text)}

    def _read_line(self, start: int, end: int, line: bytes | None) -> None:
        if line is None:
            self.damaged.append((start, end - start))
            self._skipped.append((start, end - start))
            return
        if line.startswith(HEADER_PREFIX):
            return
        is_decoded = line.startswith(_DECODED_PREFIXES) or (
            line.startswith(_TURN_END_PREFIXES) and _DELETED_FIELD in line
        )
        entry = cast("_TreeEntry | None", decode_entry(line) if is_decoded else decode_link(line))
        if entry is None:
            return
        on_path = self._advance_path(entry, start)
        if not on_path:
            self._skipped.append((start, end - start))
        if isinstance(entry, (MessageEntry, CustomMessage, BranchSummary)):
            if on_path:
                self.view.add(entry.id, entry.message, LineRange(start, end, end, 1, contains_message=True))
        elif isinstance(entry, ArchiveEntry):
            self._add_archive(entry, on_path)
        elif isinstance(entry, UpgradeEntry):
            self._upgrade_record(entry, on_path)
        elif isinstance(entry, CompactionEntry):
            if on_path:
                stop = self.view.items_before(entry.first_kept_entry_id)
                self.view.compact(entry.summary, stop, entry.id, lambda ranges: _range_of_summary(ranges, start))
        elif isinstance(entry, TaintEntry):
            self._labels = joined_marks(self._labels, entry.marks)
        elif isinstance(entry, TurnEndEntry) and entry.deleted:
            self.deleted_replies[entry.turn] = entry.deleted

    def _advance_path(self, entry: _TreeEntry, start: int) -> bool:
        """Return whether `entry` is on the path of the conversation.

        If the entry's parent is missing, the conversation shows a placeholder for the parent.
        """
        old_leaf, self._leaf = self._leaf, entry.id
        tracker, index = self._path_tracker, self._entry_index
        if index >= len(tracker.on_path):
            # To find the parent, the whole file must be read, because the parent may be any entry or may be missing.
            self._left_path = self._left_path or entry.parent_id != old_leaf
            return not self._left_path
        if index in tracker.missing_parents:
            if tracker.on_path[index]:
                self.view.add_placeholder(tracker.missing_parents[index], LineRange(start, start, start, 0))
            index += 1
        self._entry_index = index + 1
        return bool(tracker.on_path[index])

    def _add_archive(self, entry: ArchiveEntry, on_path: bool) -> None:
        collapse = entry.collapse
        # In a damaged file, the messages of the range may no longer be adjacent. The range then stays visible, although
        # it also belongs to the archive.
        with contextlib.suppress(StoreError):
            if on_path:
                start, stop = self.view.part(collapse.first, collapse.last)
                line_range = join_ranges([item.note for item in self.view.items[start:stop]])
                self.view.collapse(collapse, line_range, deleted=bool(entry.deleted))
                self.summaries |= dict.fromkeys(line_range.summaries, collapse.holder)
        number = len(self.records) + 1
        self.put(
            msgspec.structs.replace(
                _convert_record(collapse),
                id=collapse.holder,
                number=number,
                timestamp=entry.timestamp,
                spans=collapse.spans,
                sha256=collapse.sha256,
                deleted=entry.deleted,
                marks=self._labels,
            )
        )

    def _upgrade_record(self, entry: UpgradeEntry, on_path: bool) -> None:
        upgrade = entry.upgrade
        if on_path:
            self.view.upgrade(upgrade)
        if (record := self.records.get(upgrade.holder)) is not None:
            _, _, new_text = upgrade.stub.partition("\n\n")
            text = new_text.removesuffix(f"\n\nFinal answer:\n{record.answer}")
            self.put(msgspec.structs.replace(record, record=text, summarized=True))

    def undamaged_spans(self, start: int, end: int) -> Iterator[Span]:
        """Yield the spans of the lines from `start` to `end` that are not damaged and are on the path."""
        for offset, length in self._skipped[bisect_left(self._skipped, (start, 0)) :]:
            if offset >= end:
                break
            if start < offset:
                yield start, offset - start
            start = offset + length
        if start < end:
            yield start, end - start

    def era_messages(self, record: ArchiveRecord) -> tuple[Message, ...]:
        """Return the messages that the holder of an era sees.

        The holder sees the records of the era's members, and the messages between these records.
        """
        parts = [(stored.offset, [entry_message(stored)]) for stored in entries_in(self.path, record.own)]
        for id in record.members:
            member = self.records[id]
            stub = stub_text(member.kind, id, member.record, member.answer)
            parts.append((member.spans[0][0], [user(member.task or deletion_marker(member.deleted)), assistant(stub)]))
        return tuple(message for _, messages in sorted(parts, key=itemgetter(0)) for message in messages)


def _searchable(entry: AnyMessageEntry | None) -> Message | None:
    if entry is None or (isinstance(entry, MessageEntry) and entry.deleted):
        return None
    return entry.message


def read_archive(path: Path, record: ArchiveRecord, first: int = 1, last: int | None = None) -> list[Message]:
    """Return the messages `first` to `last` of an archive in the file at `path`. The first message has the number 1.

    Raises DamagedError, StoreError.
    """
    try:
        return [entry.message for _, entry in messages_in(path, record.spans, record.sha256, first, last)]
    except DamagedError as error:
        raise DamagedError(f"archive {record.id}: {error}") from error


def _convert_record(collapse: Collapse) -> ArchiveRecord:
    """Return the metadata of the archive in `collapse`. If they are invalid, set only what `collapse` contains."""
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
            replaced_messages=len(collapse.messages),
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


def join_ranges(ranges: Sequence[LineRange]) -> LineRange:
    """Return one range that covers the adjacent `ranges`."""
    distinct = dict.fromkeys(ranges)
    messages = sum(each.messages for each in distinct)
    summaries = tuple(offset for each in distinct for offset in each.summaries)
    return LineRange(
        ranges[0].start, max(each.end for each in ranges), ranges[0].first_line_end, messages, summaries=summaries
    )


def _range_of_summary(ranges: Sequence[LineRange], line: int) -> LineRange:
    """Return the range of the compaction summary at the offset `line`.

    The result joins all ranges that the summary replaced.
    """
    joined = join_ranges(ranges) if ranges else LineRange(line, line, line, 0)
    return msgspec.structs.replace(joined, summaries=(*joined.summaries, line))
