"""What of a session's messages the conversation still shows: those that nobody archived, and stubs for the others.

Session and archive fold the same entries by the same rules, each with what it needs to know of a message.
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
"""Among how many messages behind what was archived last the next part is looked for first."""
NOTHING: Final = Message("user", ())


class VisibleMessage(Struct, Generic[T], frozen=True, gc=False):
    """A message that is shown. It stands for the entries `first` to `last`, mostly one; `note` is the keeper's own."""

    message: Message
    first: str
    last: str
    note: T


class VisibleMessages(Generic[T]):
    """The messages that are shown, in order."""

    def __init__(self) -> None:
        self.items: list[VisibleMessage[T]] = []
        self._tasks: dict[str, str] = {}
        self._deleted: set[str] = set()
        self._late: dict[str, str] = {}
        self._near = 0  # where something was archived last

    def __iter__(self) -> Iterator[Message]:
        return (item.message for item in self.items)

    def copy(self) -> VisibleMessages[T]:
        """Return a view that can go its own way."""
        other: VisibleMessages[T] = VisibleMessages()
        other.items, other._tasks, other._late = list(self.items), dict(self._tasks), dict(self._late)
        other._deleted = set(self._deleted)
        return other

    def add(self, id: str, message: Message, note: T) -> None:
        """Show the message of the entry `id`."""
        self.items.append(VisibleMessage(message, id, id, note))

    def lose(self, id: str, note: T) -> None:
        """Know of the entry `id`, whatever it was: its line is damaged."""
        self.items.append(VisibleMessage(NOTHING, id, id, note))

    def part(self, first: str, last: str) -> tuple[int, int]:
        """Return from where to where (exclusive) the items stand for the entries `first` to `last`.

        Raises StoreError when they do not stand for exactly these.
        """
        # Where much is archived at once, each part follows the one before it. Else it is rarely the oldest, and looking
        # from the end finds it sooner.
        near = range(self._near, min(self._near + NEAR, len(self.items)))
        back = range(len(self.items) - 1, -1, -1)
        stop = next((place for place in chain(near, back) if self.items[place].last == last), -1)
        while 0 <= stop < len(self.items) - 1 and self.items[stop + 1].last == last:
            stop += 1
        start = next((place for place in range(stop, -1, -1) if self.items[place].first == first), -1)
        if start < 0:
            raise StoreError(f"entries {first} to {last} are not, or not any more, a part of the conversation")
        while start and self.items[start - 1].first == first:
            start -= 1
        return start, stop + 1

    def collapse(self, collapse: Collapse, note: T, *, deleted: bool = False) -> list[VisibleMessage[T]]:
        """Show the messages of `collapse` instead of what it archives, or archived until that was `deleted`.

        Returns what was shown. Raises StoreError when that is not.
        """
        start, stop = self.part(collapse.first, collapse.last)
        # A stub that stays may read better by now than when this was worked out.
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
        for place in range(start, len(self.items)) if self._late else ():
            for holder in holders_in(self.items[place].message):
                if stub := self._late.pop(holder, None):
                    self._restub(place, stub)
        return gone

    def kept(self, first: str) -> int:
        """Return how many items stand before the entry `first`: all of them when it is none of these."""
        return next((place for place, item in enumerate(self.items) if item.first == first), len(self.items))

    @property
    def told(self) -> int:
        """How many items at the beginning are what the agent is told of its project: these stay."""
        return next((place for place, item in enumerate(self.items) if not is_project(item.message)), len(self.items))

    def compact(self, summary: str, stop: int, id: str, note: Callable[[list[T]], T]) -> list[VisibleMessage[T]]:
        """Show `summary`, which the entry `id` has, instead of the first `stop` items, which are returned.

        What is told of the project in front of them stays, and so do the ids of archives. `note` makes one of theirs.
        """
        start = min(self.told, stop)
        gone = self.items[start:stop]
        first, last = (gone[0].first, gone[-1].last) if gone else (id, id)
        stubs = {holder: text for item in gone for holder, text in stubs_in(item.message).items()}
        kept = (shorten_record(text, self.task(holder)) for holder, text in stubs.items())
        said = summary_message(summary, kept)
        self.items[start:stop] = [VisibleMessage(said, first, last, note([item.note for item in gone]))]
        for holder in stubs:
            self._late.pop(holder, None)
        return gone

    def upgrade(self, upgrade: RecordUpgrade) -> None:
        """Take a better text for a stub in; a stub that is not shown any more needs none."""
        place = self._place(upgrade.holder)
        if place is None or holder_of(upgrade.stub) != upgrade.holder:
            return
        if is_brief(stubs_in(self.items[place].message)[upgrade.holder]):
            return
        if upgrade.at_once:
            self._late.pop(upgrade.holder, None)
            self._restub(place, upgrade.stub)
        else:
            self._late[upgrade.holder] = upgrade.stub

    @property
    def late(self) -> dict[str, str]:
        """Better texts that wait for a collapse before them, by holder."""
        return self._late

    def holders(self, known: Iterable[str] | None = None) -> list[tuple[str, str]]:
        """Return id and task of the holders that can be asked and whose stubs are shown, in order."""
        known = self._tasks.keys() - self._deleted if known is None else known
        shown = (holder for item in self.items for holder in holders_in(item.message))
        return [(holder, self._tasks[holder]) for holder in dict.fromkeys(shown) if holder in known]

    def task(self, holder: str) -> str:
        """Return what the archive of a holder was about, "" when that is not known."""
        return self._tasks.get(holder, "")

    def _restub(self, place: int, stub: str) -> None:
        item = self.items[place]
        self.items[place] = VisibleMessage(replace_record(item.message, stub), item.first, item.last, item.note)

    def _place(self, holder: str) -> int | None:
        places: Sequence[int] = range(len(self.items) - 1, -1, -1)
        return next((place for place in places if holder in holders_in(self.items[place].message)), None)
