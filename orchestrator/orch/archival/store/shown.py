"""Which archives a conversation shows, and the place of each archived message in them.

A fold or a merge puts archives into a new archive. Afterwards the conversation shows only the new archive, so recall
names the new archive, with the numbers of its entries.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from itertools import accumulate

from msgspec import Struct

from orch_protocol.core.errors import AgentNotFoundError
from orch_protocol.core.messages import Message
from orch_worker.conversation.records.facts import PREFIX_CHARS
from orch_worker.conversation.turns import turns_of

from .catalog import ArchiveRecord, SearchableCatalog

__all__ = ["Location", "ShownArchives", "shown_ids"]


class Location(Struct, frozen=True):
    """The place of a message in the shown archive `id`: its entry number, and its turn in the conversation.

    `age` is the number of turns that have begun since that turn. `turn` is 0 if the turn is unknown. `position` is the
    position of the archive in the conversation, negative if the conversation does not show it.
    """

    id: str
    entry: int
    turn: int = 0
    age: int = 0
    position: int = -1


class _Layout(Struct, frozen=True):
    """The entries of an archive.

    `owners` contains for each entry the archive that owns the message, and the index among its own messages. `numbers`
    maps these to the numbers of the entries. `turns` contains for each entry the position of its turn in the archive.
    """

    owners: list[tuple[str, int]]
    numbers: dict[tuple[str, int], int]
    turns: list[int]


class ShownArchives:
    """The archives of `catalog` that its conversation shows. `given` restricts the archives to these ids."""

    def __init__(self, catalog: SearchableCatalog, given: Collection[str] | None = None) -> None:
        self._catalog = catalog
        self._layouts: dict[str, _Layout] = {}
        self._given = given
        self._known: tuple[int, tuple[str, ...]] | None = None
        self.update()

    def update(self) -> None:
        """Take over changes of the conversation and of the archives."""
        catalog = self._catalog
        messages = catalog.conversation()
        if messages is not None:
            self._first_turns, self._turns = _first_turns(catalog, messages)
        known = (len(catalog.order), ("",) if messages is None else tuple(self._first_turns))
        if known == self._known:
            return
        self._known = known
        if messages is None:
            current, (first_turns, turns) = shown_ids(catalog, ()), ({}, 0)
            current.sort(key=lambda id: _first_number(catalog, catalog.records[id]))
            for id in current:
                first_turns[id] = turns + 1
                turns += max(catalog.records[id].turns, int(catalog.records[id].kind != "phase"))
            self._first_turns, self._turns = first_turns, turns
        else:
            current = shown_ids(catalog, first_turns := self._first_turns)
        self._current = _containers(catalog, current)
        self.ids: tuple[str, ...] = tuple(current if self._given is None else _outermost(catalog, self._given))
        """The ids of the archives, in the order of the conversation."""
        self._containers = self._current if self._given is None else _containers(catalog, self.ids)
        self._positions = {
            id: position if self._given or id in first_turns else position - len(self.ids)
            for position, id in enumerate(self.ids)
        }
        self._entries_before: dict[str, int] = {}
        if catalog.numbered_together:
            counts = accumulate((catalog.records[id].count for id in self.ids), initial=0)
            self._entries_before = dict(zip(self.ids, counts, strict=False))
        kept = {*self.ids, *current}
        self._layouts = {id: layout for id, layout in self._layouts.items() if id in kept}

    def locate(self, record: ArchiveRecord, index: int) -> Location | None:
        """Return the place of the own message `index` of `record`. Return None if no shown archive contains it."""
        container = self._containers.get(record.id)
        number = self._layout(container).numbers.get((record.id, index)) if container is not None else None
        if container is None or number is None:
            return None
        turn = self._turn(record, index)
        age = max(0, self._turns - turn) if turn else 0
        number += self._entries_before.get(container, 0)
        return Location(container, number, turn, age, self._positions.get(container, -1))

    def contains(self, record: ArchiveRecord) -> bool:
        """Return whether the archive is shown, or is part of a shown archive."""
        return record.id in self._containers

    def turns_of(self, id: str) -> list[int]:
        """Return the turn of each entry of the shown archive `id`. The list is empty if the turns are unknown."""
        first = self._first_turns.get(id)
        return [] if first is None else [first + position for position in self._layout(id).turns]

    def owners_of(self, id: str) -> list[tuple[str, int]]:
        """Return for each entry of the shown archive `id` the archive that owns the message, and its index there."""
        return self._layout(id).owners

    def check(self, record: ArchiveRecord) -> None:
        """Raise AgentNotFoundError if the conversation shows another archive in place of `record`.

        An archive stays readable under its own id while the record of that archive names places in it.
        """
        if record.id in self.ids or (container := self._containers.get(record.id)) is None:
            return
        if f"{record.id[:PREFIX_CHARS]}:" in self._catalog.records[container].record:
            return
        numbers = [number for (id, _), number in self._layout(container).numbers.items() if id in self._ids_in(record)]
        where = f"entries {min(numbers)} to {max(numbers)}" if numbers else "part of it"
        raise AgentNotFoundError(f"archive {record.id} was merged into archive {container}: read {container}, {where}")

    def _ids_in(self, record: ArchiveRecord) -> set[str]:
        return {record.id, *(member.id for member in self._catalog.descendants(record))}

    def _turn(self, record: ArchiveRecord, index: int) -> int:
        container = self._current.get(record.id)
        first = None if container is None else self._first_turns.get(container)
        if container is None or first is None:
            return 0
        layout = self._layout(container)
        number = layout.numbers.get((record.id, index))
        return 0 if number is None else first + layout.turns[number - 1]

    def _layout(self, id: str) -> _Layout:
        if id not in self._layouts:
            entries = self._catalog.entries(self._catalog.records[id])
            owners = [(entry.owner, entry.index) for entry in entries]
            numbers = {owner: number for number, owner in enumerate(owners, 1)}
            spans = turns_of([entry.message for entry in entries])
            turns = [0] * len(entries)
            for position, span in enumerate(spans):
                turns[span.start : span.stop] = [position] * (span.stop - span.start)
            self._layouts[id] = _Layout(owners, numbers, turns)
        return self._layouts[id]


def shown_ids(catalog: SearchableCatalog, shown: Iterable[str]) -> list[str]:
    """Return the archives that the conversation shows, and those that belong to none of its archives.

    `shown` are the archives whose records are in the conversation. An archive of an abandoned branch belongs to none of
    them, and stays readable. An archive that contains a shown archive is left out.
    """
    records = catalog.records
    shown_here = [id for id in dict.fromkeys(shown) if not records[id].deleted]
    inside = {member.id for id in shown_here for member in catalog.descendants(records[id])}
    parents: dict[str, list[str]] = {}
    for record in records.values():
        for id in record.members:
            parents.setdefault(id, []).append(record.id)
    containing: set[str] = set()
    pending = list(shown_here)
    for id in pending:
        new = [parent for parent in parents.get(id, ()) if parent not in containing]
        containing.update(new)
        pending += new
    excluded = inside | containing | catalog.repeated(shown_here) | set(shown_here)
    others = {id: record for id, record in records.items() if id not in excluded and not record.deleted}
    return [*shown_here, *(id for id in others if not any(parent in others for parent in parents.get(id, ())))]


def _outermost(catalog: SearchableCatalog, given: Collection[str]) -> list[str]:
    """Return those of the archives `given` that belong to no other of them."""
    known = [record for id, record in catalog.records.items() if id in given and not record.deleted]
    inside = {member.id for record in known for member in catalog.descendants(record)}
    return [record.id for record in known if record.id not in inside]


def _containers(catalog: SearchableCatalog, ids: Iterable[str]) -> dict[str, str]:
    """Return for each archive in one of the archives `ids` that archive."""
    found: dict[str, str] = {}
    for id in ids:
        found.setdefault(id, id)
        for member in catalog.descendants(catalog.records[id]):
            found.setdefault(member.id, id)
    return found


def _first_number(catalog: SearchableCatalog, record: ArchiveRecord) -> int:
    return min([record.number, *(member.number for member in catalog.descendants(record))])


def _first_turns(catalog: SearchableCatalog, messages: Sequence[Message]) -> tuple[dict[str, int], int]:
    """Return the first turn of each archive in the conversation `messages`, and the number of all its turns."""
    first: dict[str, int] = {}
    turns = 0
    for span in turns_of(messages):
        ids = [id for message in messages[span.start : span.stop] for id in catalog.holders(message)]
        before = turns
        for id in ids:
            record = catalog.records[id]
            first.setdefault(id, turns + 1)
            if record.kind != "phase":
                turns += max(record.turns, 1)
        if turns == before:
            turns += 1
    return first, turns
