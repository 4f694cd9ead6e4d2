"""The catalog of the archives in one folder. The catalog also maps records in a conversation to archives."""

from __future__ import annotations

import mmap
from abc import ABC, abstractmethod
from collections.abc import Collection, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from msgspec import Struct

from orch_protocol.core.archives import ArchiveKind, Span
from orch_protocol.core.errors import AgentNotFoundError, AmbiguousRefError, StoreError
from orch_protocol.core.messages import Message, Text
from orch_protocol.core.taint import TaintLabel
from orch_worker.conversation.receipt import Receipt
from orch_worker.conversation.stubs import holder_of, is_summary
from orch_worker.session.archived_entries import read_spans
from orch_worker.session.entry_codec import MESSAGE_PREFIXES
from orch_worker.session.log.record_format import unseal_line

__all__ = [
    "ArchiveCatalog",
    "ArchiveRecord",
    "ArchivedMessage",
    "SearchableCatalog",
    "StoredMessage",
    "containing",
]


class ArchiveRecord(Struct, frozen=True, omit_defaults=True):
    """The metadata of one archive.

    `number` is the position of the archive, counted from 1. `count` is the number of messages in the archive, and
    `prompts` the number of prompts at its start. `replaced_messages` is the number of messages that the archive
    replaces in the conversation. `calls` is the number of model calls in the archive, and `turns` the number of turns.
    `members` are the archives whose records are among the messages of this archive. `record` is the text that remains
    in the conversation; the final answer `answer` follows this text. `differences` contains the difference of each
    message from its original format. The lines of the archive start at the byte `offset` of the file `segment`, and
    `sha256` is their hash. `original_tokens` is the size of what the archive stands for, with the content of its
    members, and `entries` the number of entries that `read_archive` shows, 0 if it is unknown. `deleted` is the time at
    which the content was deleted. `marks` are the taint labels of the conversation at the time of archiving. `saved` is
    what archiving had saved in the conversation at the call `saved_calls`, in uncached input tokens, after the cost of
    this archive.
    """

    id: str
    number: int
    kind: ArchiveKind
    task: str
    count: int
    prompts: int
    replaced_messages: int
    calls: int
    turns: int
    tokens: int
    level: int
    timestamp: str
    format: str
    record: str
    reason: str
    answer: str = ""
    receipt: Receipt = Receipt()
    members: tuple[str, ...] = ()
    differences: tuple[Any, ...] = ()
    segment: int = 0
    offset: int = 0
    sha256: str = ""
    summarized: bool = False
    spans: tuple[Span, ...] = ()
    own: tuple[Span, ...] = ()
    original_tokens: int = 0
    entries: int = 0
    deleted: str = ""
    marks: tuple[TaintLabel, ...] = ()
    saved: float = 0.0
    saved_calls: int = 0


def containing(records: Iterable[ArchiveRecord], ids: Collection[str]) -> set[str]:
    """Return the archives into which the archives `ids` were merged, also through others, and that still exist.

    `records` are in the order of their creation, so members precede the archives that contain them.
    """
    found = set(ids)
    for record in records:
        if not record.deleted and not found.isdisjoint(record.members):
            found.add(record.id)
    return found.difference(ids)


class StoredMessage(Struct, frozen=True):
    """A stored message, with its orch form and the difference that restores its original format."""

    message: Message
    difference: Any = None


class ArchivedMessage(Struct, frozen=True):
    """A message of an archive. It is the own message `index` of the archive `owner`; "" if it belongs to none."""

    owner: str
    index: int
    message: Message


class ArchiveCatalog(ABC):
    """The archives of `folder`. Subclasses implement how the messages of an archive are read."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.records: dict[str, ArchiveRecord] = {}
        """All archives by id, in the order of their creation."""
        self.order: list[str] = []
        """The ids of the archives in order of their numbers."""

    def put(self, record: ArchiveRecord) -> None:
        """Add or update an archive."""
        if record.id not in self.records:
            self.order.append(record.id)
        self.records[record.id] = record

    def find(self, ref: str) -> ArchiveRecord:
        """Return the archive whose id is `ref` or starts with `ref`. Raises AgentNotFoundError or AmbiguousRefError."""
        if ref in self.records:
            return self.records[ref]
        found = [id for id in self.records if ref and id.startswith(ref)]
        if len(found) == 1:
            return self.records[found[0]]
        if found:
            raise AmbiguousRefError(f"the ids of several archives start with {ref!r}: {', '.join(found[:8])}")
        raise AgentNotFoundError(f"no archive {ref!r} in {self.folder}; search_archive finds the ids of archives")

    def by_number(self, number: int) -> ArchiveRecord:
        """Return the archive with the number `number`."""
        return self.records[self.order[number - 1]]

    def holders(self, message: Message) -> tuple[str, ...]:
        """Return the archives represented by `message`.

        A user message can represent phases, an assistant message a turn or an era. A compaction summary represents all
        archives that it replaced.
        """
        if message.role == "system":
            return ()
        is_phase, texts = message.role == "user", [block.text for block in message.content if isinstance(block, Text)]
        records = [
            record
            for text in texts
            if (record := self.records.get(holder_of(text) or "")) and self.is_record_text(record, text)
        ]
        if records and is_summary(message):
            return tuple(record.id for record in records)
        return tuple(record.id for record in records if (record.kind == "phase") == is_phase)

    def is_record_text(self, record: ArchiveRecord, text: str) -> bool:  # noqa: ARG002 - subclasses use the arguments
        """Return whether `text`, which begins like the record of the archive `record`, is this record."""
        return True

    def record_positions(self, messages: Sequence[Message]) -> set[int]:
        """Return the positions of those `messages` that are records of turns and eras, or prompts of such turns.

        A compaction summary in place of a prompt is left out, because the summary covers more than the prompt.
        """
        positions: set[int] = set()
        for index, message in enumerate(messages):
            if message.role == "assistant" and (holders := self.holders(message)):
                first = max(0, index - self.records[holders[-1]].replaced_messages + 1)
                positions |= {position for position in range(first, index + 1) if not is_summary(messages[position])}
        return positions

    def descendants(self, record: ArchiveRecord) -> Iterator[ArchiveRecord]:
        """Yield the members of `record` and, recursively, their members."""
        for id in record.members:
            yield self.records[id]
            yield from self.descendants(self.records[id])

    @abstractmethod
    def messages(self, id: str) -> list[StoredMessage]:
        """Return the original messages of the archive `id`.

        Raises DamagedError if the messages do not match their hash.
        """


class SearchableCatalog(ArchiveCatalog):
    """Archives with the operations that search needs.

    A subclass provides the positions of the lines of messages.
    """

    numbered_together = False
    """Whether the entries of all archives have consecutive numbers. Otherwise the numbers of each archive start at 1.
    """

    @abstractmethod
    def own_messages(self, record: ArchiveRecord) -> list[Message | None]:
        """Return the archive's own messages. A message that cannot be read or belongs to another archive is None."""

    @abstractmethod
    def entries(self, record: ArchiveRecord) -> list[ArchivedMessage]:
        """Return the messages of the archive as `read_archive` shows them, with the messages of its members in place.

        Raises DamagedError, StoreError.
        """

    @abstractmethod
    def conversation(self) -> Sequence[Message] | None:
        """Return the conversation to which the archives belong, with their records. None: it is unknown."""

    def repeated(self, ids: Sequence[str]) -> set[str]:  # noqa: ARG002 - subclasses use the argument
        """Return the archives whose messages are in the archives `ids`, without being members of these archives."""
        return set()

    @abstractmethod
    def own_spans(self, record: ArchiveRecord) -> tuple[Path, Sequence[Span]]:
        """Return the file of the archive's own messages and the line spans of these messages."""

    def lines(self, id: str) -> list[bytes]:
        """Return the lines of the archive's own messages. An unreadable line is b"". Raises StoreError."""
        chunks = read_spans(*self.own_spans(self.records[id]))
        sealed = (
            unseal_line(line) for chunk in chunks for line in chunk.split(b"\n") if line.startswith(MESSAGE_PREFIXES)
        )
        return [line.object if line else b"" for line in sealed]

    def archives_containing(self, needle: bytes) -> Iterator[ArchiveRecord]:
        """Yield the archives whose own spans contain the bytes `needle`, ordered by file and offset.

        Raises StoreError.
        """
        spans_by_path: dict[Path, list[tuple[int, int, int]]] = {}
        for record in self.records.values():
            path, spans = self.own_spans(record)
            spans_by_path.setdefault(path, []).extend((start, start + length, record.number) for start, length in spans)
        for path, spans_of_path in spans_by_path.items():
            try:
                with open(path, "rb") as file, mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ) as data:
                    for start, end, number in sorted(spans_of_path):
                        if data.find(needle, start, end) >= 0:
                            yield self.by_number(number)
            except (OSError, ValueError) as error:  # Python raises ValueError for an empty file
                raise StoreError(f"cannot read {path}: {error}") from error
