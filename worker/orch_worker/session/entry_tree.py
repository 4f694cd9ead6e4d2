"""Which entry of a session follows which: a tree, of which one path at a time is the conversation. No I/O."""

from __future__ import annotations

from array import array
from collections.abc import Iterator, Sequence

__all__ = ["EntryTree"]


class EntryTree:
    """A tree that grows an entry at a time. An entry's place is how many came before it.

    A parent stands before its children, so that every walk ends. Nothing recurses: a tree is as deep as a session is
    long.
    """

    def __init__(self) -> None:
        self._places: dict[str, int] = {}
        self._late: list[str] = []
        """Ids of the last entries, as long as nobody asked where one stands."""
        self.parents = array("q")
        """The place of the entry that each one follows, -1 for none."""
        self.leaf: str | None = None
        """Id of the last entry."""

    def __len__(self) -> int:
        return len(self.parents)

    @property
    def places(self) -> dict[str, int]:
        """Where each entry stands, by its id; of several with one id the last."""
        if self._late:
            late, self._late = self._late, []
            self._places.update(zip(late, range(len(self.parents) - len(late), len(self.parents)), strict=True))
        return self._places

    def missing(self, parent_id: str | None) -> bool:
        """Return whether an entry that is said to follow `parent_id` follows one whose line is damaged.

        That one is then to be added first. It was between the entry and the one before it in the file, and is taken to
        follow that: where else it may have been nobody can say.
        """
        return parent_id is not None and parent_id not in self.places

    def add(self, id: str, parent_id: str | None) -> int:
        """Take the next entry in, which follows a known one, or None; return where that stands, -1 for None."""
        places = self.places
        parent = -1 if parent_id is None else places[parent_id]
        places[id] = len(self.parents)
        self.parents.append(parent)
        self.leaf = id
        return parent

    def extend(self, ids: Sequence[str]) -> None:
        """Take the next entries in, each of which follows the one before it."""
        place = len(self.parents)
        self._late += ids
        self.parents.extend(range(place - 1, place - 1 + len(ids)))
        self.leaf = ids[-1]

    def back(self, place: int) -> Iterator[int]:
        """Yield `place` and those of the entries before it on its path, the first one last."""
        while place >= 0:
            yield place
            place = self.parents[place]

    def path(self, place: int) -> bytearray:
        """Return, for each entry there is, whether it is on the path to `place`."""
        on = bytearray(len(self.parents))
        for each in self.back(place):
            on[each] = 1
        return on
