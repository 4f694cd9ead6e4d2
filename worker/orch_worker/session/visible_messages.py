"""The messages that a conversation still shows: messages that are not archived, and records of archives.

The session and the archives apply the same rules to the same entries. Each of the two attaches other data (`note`) to
the messages.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import chain
from typing import Final, Generic, TypeVar

from msgspec import Struct

from orch_protocol.core.archives import Collapse, RecordUpgrade
from orch_protocol.core.errors import StoreError
from orch_protocol.core.messages import Message

from ..conversation.framing import is_project
from ..conversation.stubs import (
    holder_of,
    holders_in,
    is_brief,
    replace_record,
    shorten_record,
    stubs_in,
    summary_message,
)

__all__ = ["VisibleMessage", "VisibleMessages"]

T = TypeVar("T")
NEAR: Final = 512
"""Number of messages after the last archived part in which the next part is searched first."""
NOTHING: Final = Message("user", ())


class VisibleMessage(Struct, Generic[T], frozen=True, gc=False):
    """A shown message.

    The message represents the entries `first` to `last`, usually one entry. The user of this class stores data in
    `note`.
    """

    message: Message
    first: str
    last: str
    note: T


class VisibleMessages(Generic[T]):
    """The shown messages, in order."""

    def __init__(self) -> None:
        self.items: list[VisibleMessage[T]] = []
        self._tasks: dict[str, str] = {}
        self._deleted: set[str] = set()
        self._pending_records: dict[str, str] = {}
        self._near = 0  # Position of the last archived part.

    def __iter__(self) -> Iterator[Message]:
        return (item.message for item in self.items)

    def copy(self) -> VisibleMessages[T]:
        """Return an independent copy."""
        other: VisibleMessages[T] = VisibleMessages()
        other.items, other._tasks, other._pending_records = (
            list(self.items),
            dict(self._tasks),
            dict(self._pending_records),
        )
        other._deleted = set(self._deleted)
        return other

    def add(self, id: str, message: Message, note: T) -> None:
        """Add the message of the entry `id`."""
        self.items.append(VisibleMessage(message, id, id, note))

    def add_placeholder(self, id: str, note: T) -> None:
        """Add a placeholder for the entry `id`, whose line is damaged."""
        self.items.append(VisibleMessage(NOTHING, id, id, note))

    def part(self, first: str, last: str) -> tuple[int, int]:
        """Return the start and stop (exclusive) of the items that represent the entries `first` to `last`.

        Raise StoreError if no items represent exactly these entries.
        """
        # In a series of archives, each part follows the previous one. Otherwise the part is usually near the end, so
        # search backwards.
        near = range(self._near, min(self._near + NEAR, len(self.items)))
        back = range(len(self.items) - 1, -1, -1)
        stop = next((place for place in chain(near, back) if self.items[place].last == last), -1)
        while 0 <= stop < len(self.items) - 1 and self.items[stop + 1].last == last:
            stop += 1
        start = next((place for place in range(stop, -1, -1) if self.items[place].first == first), -1)
        if start < 0:
            raise StoreError(f"entries {first} to {last} are not, or no longer, a part of the conversation")
        while start and self.items[start - 1].first == first:
            start -= 1
        return start, stop + 1

    def collapse(self, collapse: Collapse, note: T, *, deleted: bool = False) -> list[VisibleMessage[T]]:
        """Replace the archived messages by the messages of `collapse`, and return the replaced items.

        `deleted` is True if the archive was deleted later. Raise StoreError if the archived messages are not shown.
        """
        start, stop = self.part(collapse.first, collapse.last)
        # A record in this part may have been improved since `collapse` was computed.
        texts = {holder: text for item in self.items[start:stop] for holder, text in stubs_in(item.message).items()}
        messages = collapse.messages
        for text in texts.values():
            messages = tuple(replace_record(message, text) for message in messages)
        stubs = [VisibleMessage(message, collapse.first, collapse.last, note) for message in messages]
        self._tasks[collapse.holder] = collapse.task
        if deleted:
            self._deleted.add(collapse.holder)
        gone, self.items[start:stop] = self.items[start:stop], stubs
        self._near = start
        for place in range(start, len(self.items)) if self._pending_records else ():
            for holder in holders_in(self.items[place].message):
                if stub := self._pending_records.pop(holder, None):
                    self._restub(place, stub)
        return gone

    def items_before(self, first: str) -> int:
        """Return the number of items before the entry `first`, or the number of all items if `first` is not shown."""
        return next((place for place, item in enumerate(self.items) if item.first == first), len(self.items))

    @property
    def project_items(self) -> int:
        """Number of items at the beginning that contain the project description. These items always stay."""
        return next((place for place, item in enumerate(self.items) if not is_project(item.message)), len(self.items))

    def compact(self, summary: str, stop: int, id: str, note: Callable[[list[T]], T]) -> list[VisibleMessage[T]]:
        """Replace the first `stop` items by `summary`, the text of the entry `id`, and return the replaced items.

        The project description and the ids of archives stay. `note` combines the notes of the replaced items.
        """
        start = min(self.project_items, stop)
        gone = self.items[start:stop]
        first, last = (gone[0].first, gone[-1].last) if gone else (id, id)
        stubs = {holder: text for item in gone for holder, text in stubs_in(item.message).items()}
        kept = (shorten_record(text, self.task(holder)) for holder, text in stubs.items())
        shown = summary_message(summary, kept)
        self.items[start:stop] = [VisibleMessage(shown, first, last, note([item.note for item in gone]))]
        for holder in stubs:
            self._pending_records.pop(holder, None)
        return gone

    def upgrade(self, upgrade: RecordUpgrade) -> None:
        """Apply a better text for a record. The text is ignored if the record is no longer shown."""
        place = self._place(upgrade.holder)
        if place is None or holder_of(upgrade.stub) != upgrade.holder:
            return
        if is_brief(stubs_in(self.items[place].message)[upgrade.holder]):
            return
        if upgrade.at_once:
            self._pending_records.pop(upgrade.holder, None)
            self._restub(place, upgrade.stub)
        else:
            self._pending_records[upgrade.holder] = upgrade.stub

    @property
    def pending_records(self) -> dict[str, str]:
        """Better texts of records. Keys are archive ids. A text is used at the next collapse before its record."""
        return self._pending_records

    def holders(self, known: Iterable[str] | None = None) -> list[tuple[str, str]]:
        """Return the id and the task of each archive that can be queried and whose record is shown, in order."""
        known = self._tasks.keys() - self._deleted if known is None else known
        shown = (holder for item in self.items for holder in holders_in(item.message))
        return [(holder, self._tasks[holder]) for holder in dict.fromkeys(shown) if holder in known]

    def task(self, holder: str) -> str:
        """Return the task of an archive, or "" if the task is unknown."""
        return self._tasks.get(holder, "")

    def _restub(self, place: int, stub: str) -> None:
        item = self.items[place]
        self.items[place] = VisibleMessage(replace_record(item.message, stub), item.first, item.last, item.note)

    def _place(self, holder: str) -> int | None:
        places: Sequence[int] = range(len(self.items) - 1, -1, -1)
        return next((place for place in places if holder in holders_in(self.items[place].message)), None)
