"""What is known of the archives of one folder, and how a stub in a conversation leads to its archive."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from msgspec import Struct

from orch_protocol.core.archives import ArchiveKind, Span
from orch_protocol.core.errors import AgentNotFoundError, AmbiguousRefError
from orch_protocol.core.messages import Message
from orch_protocol.core.taint import TaintLabel
from orch_worker.conversation.receipt import Receipt
from orch_worker.conversation.stubs import holders_in, is_summary

__all__ = ["ArchiveCatalog", "ArchiveRecord", "SearchableCatalog", "StoredMessage"]


class ArchiveRecord(Struct, frozen=True, omit_defaults=True):
    """What is known of one archive without reading it.

    `number` counts archives from 1. It stands for `count` messages of its own, the first `prompts` of which were asked,
    and in the conversation for `stands` messages. `calls` and `turns` are the model calls and turns in it; `members`
    the archives whose stubs are among its messages. `record` is the text that stays in the conversation, `answer` the
    final answer behind it. `offset` and `sha256` are where its lines begin in `segment` and what they hash to.
    `deleted` is when what it held was deleted for good. `marks` are what the conversation was marked with by then.
    """

    id: str
    number: int
    kind: ArchiveKind
    task: str
    count: int
    prompts: int
    stands: int
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
    rest: tuple[Any, ...] = ()
    segment: int = 0
    offset: int = 0
    sha256: str = ""
    summarised: bool = False
    spans: tuple[Span, ...] = ()
    own: tuple[Span, ...] = ()
    deleted: str = ""
    marks: tuple[TaintLabel, ...] = ()


class StoredMessage(Struct, frozen=True):
    """A message as it is stored: in our shape, and what else its own shape needs to be restored."""

    message: Message
    rest: Any = None


class ArchiveCatalog(ABC):
    """The archives of `folder`. What holds their messages says how these are read."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.records: dict[str, ArchiveRecord] = {}
        """Every archive, by id, in order."""
        self.order: list[str] = []
        """Their ids: the archive with number 1 comes first."""

    def keep(self, record: ArchiveRecord) -> None:
        """Take a new archive in."""
        if record.id not in self.records:
            self.order.append(record.id)
        self.records[record.id] = record

    def find(self, ref: str) -> ArchiveRecord:
        """Return the archive whose id is or begins with `ref`. Raises AgentNotFoundError, AmbiguousRefError."""
        if ref in self.records:
            return self.records[ref]
        found = [id for id in self.records if ref and id.startswith(ref)]
        if len(found) == 1:
            return self.records[found[0]]
        if found:
            raise AmbiguousRefError(f"several archives begin with {ref!r}: {', '.join(found[:8])}")
        raise AgentNotFoundError(f"no archive {ref!r} in {self.folder}: search_archive finds the ids there are")

    def numbered(self, number: int) -> ArchiveRecord:
        """Return the archive with that number."""
        return self.records[self.order[number - 1]]

    def holders(self, message: Message) -> tuple[str, ...]:
        """Return which archives `message` stands for: a user's for phases, an assistant's for a turn or an era.

        What compaction left stands for whatever stood there.
        """
        if message.role == "system":
            return ()
        phase, known = message.role == "user", [self.records.get(id) for id in holders_in(message)]
        if known and is_summary(message):
            return tuple(record.id for record in known if record)
        return tuple(record.id for record in known if record and (record.kind == "phase") == phase)

    def stubs_among(self, messages: Sequence[Message]) -> set[int]:
        """Return the places of `messages` that are stubs of turns and eras, or prompts that belong to one.

        A summary in such a prompt's place stands for more than that.
        """
        places: set[int] = set()
        for place, message in enumerate(messages):
            if message.role == "assistant" and (holders := self.holders(message)):
                first = max(0, place - self.records[holders[-1]].stands + 1)
                places |= {at for at in range(first, place + 1) if not is_summary(messages[at])}
        return places

    def below(self, record: ArchiveRecord) -> Iterator[ArchiveRecord]:
        """Yield the archives that `record` holds the stubs of, and those below them."""
        for id in record.members:
            yield self.records[id]
            yield from self.below(self.records[id])

    @abstractmethod
    def messages(self, id: str) -> list[StoredMessage]:
        """Return the messages of the archive `id`, exactly. Raises DamagedError when they are not what was archived."""


class SearchableCatalog(ArchiveCatalog):
    """Archives that can be searched: they can say where the words are."""

    @abstractmethod
    def texts(self, record: ArchiveRecord) -> list[str]:
        """Return what each of the archive's own messages says, "" for what other archives say themselves."""

    @abstractmethod
    def entry(self, record: ArchiveRecord, place: int) -> int:
        """Return which message (from 1) the one at `place` of the archive's own is for who reads the archive."""

    @abstractmethod
    def lines(self, id: str) -> list[bytes]:
        """Return the lines that hold the archive's own messages, b"" for one that is none of ours."""

    @abstractmethod
    def containing(self, wanted: bytes) -> Iterator[ArchiveRecord]:
        """Yield the archives in whose files `wanted` stands as it is, in order."""
