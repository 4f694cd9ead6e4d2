"""The tree of a session's entries. One path of the tree is the current conversation. This module does no I/O."""

from __future__ import annotations

from array import array
from collections.abc import Iterator, Sequence

__all__ = ["EntryTree"]


class EntryTree:
    """A tree that grows one entry at a time. The position of an entry is the number of entries before it.

    A parent always precedes its children. No method recurses, because a tree can be as deep as the session is long.
    """

    def __init__(self) -> None:
        self._places: dict[str, int] = {}
        self._unindexed_ids: list[str] = []
        """Ids of the latest entries, which are not in `_places` yet."""
        self.parents = array("q")
        """The position of each entry's parent; -1 means that the entry has no parent."""
        self.leaf: str | None = None
        """Id of the last entry."""

    def __len__(self) -> int:
        return len(self.parents)

    @property
    def places(self) -> dict[str, int]:
        """The position of each entry by its id.

        If several entries have the same id, the position of the last of them.
        """
        if self._unindexed_ids:
            ids, self._unindexed_ids = self._unindexed_ids, []
            self._places.update(zip(ids, range(len(self.parents) - len(ids), len(self.parents)), strict=True))
        return self._places

    def missing(self, parent_id: str | None) -> bool:
        """Return whether `parent_id` names an entry whose line is damaged.

        The damaged entry must be added first. The real parent of the damaged entry is unknown, so the preceding entry
        of the file becomes the parent.
        """
        return parent_id is not None and parent_id not in self.places

    def add(self, id: str, parent_id: str | None) -> int:
        """Add an entry whose parent is known or None. Return the parent's position, or -1 if there is no parent."""
        places = self.places
        parent = -1 if parent_id is None else places[parent_id]
        places[id] = len(self.parents)
        self.parents.append(parent)
        self.leaf = id
        return parent

    def extend(self, ids: Sequence[str]) -> None:
        """Add entries. Each entry follows the previous one."""
        place = len(self.parents)
        self._unindexed_ids += ids
        self.parents.extend(range(place - 1, place - 1 + len(ids)))
        self.leaf = ids[-1]

    def path_to_root(self, place: int) -> Iterator[int]:
        """Yield `place` and the positions of its ancestors, up to the root."""
        while place >= 0:
            yield place
            place = self.parents[place]

    def path(self, place: int) -> bytearray:
        """Return a flag for each entry. The flag is 1 if the entry is on the path to `place`."""
        on = bytearray(len(self.parents))
        for each in self.path_to_root(place):
            on[each] = 1
        return on
