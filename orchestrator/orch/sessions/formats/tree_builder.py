"""Build a tree from the ids and parents in a file.

The builder converts ids, and repairs cycles and missing parents.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Final, NamedTuple

from orch_protocol.core.ids import new_entry_id

from .conversation import Reading

__all__ = ["EntryLink", "EntryTree", "build_tree"]

ENTRY_ID: Final = re.compile(r"[0-9a-f]{8}")
FOLLOWS_PREVIOUS: Final = "it follows the entry before it"


class EntryLink(NamedTuple):
    """The ids of an entry and of the entry's parent, as in the file.

    `has_parent_field` is False if the line has no field for the parent.
    """

    line: int
    id: str | None
    parent: str | None
    has_parent_field: bool = True


class EntryTree(NamedTuple):
    """A valid tree of entries.

    `places` contains the id of each entry and of its parent. `ids` maps each id in the file to the new id.
    """

    places: list[tuple[str, str | None]]
    ids: dict[str, str]


def build_tree(entries: Iterable[EntryLink], reading: Reading) -> EntryTree:
    """Return the places of `entries` in a valid tree.

    Raises DamagedError, which names the line, if the entries do not form a tree.
    """
    links = list(entries)
    lines: dict[str, int] = {}
    for each in links:
        if each.id is not None:
            lines.setdefault(each.id, each.line)
    taken = {id for id in lines if ENTRY_ID.fullmatch(id)}
    ids: dict[str, str] = {}
    places: list[tuple[str, str | None]] = []
    for each in links:
        before = places[-1][0] if places else None
        parent = _parent(each, before, lines, ids, reading)
        id = each.id
        if id is not None and id in ids:
            reading.handle_fault(each.line, f"has the id {id[:40]!r} of line {lines[id]}", "it gets a new id")
            id = None
        if id is None or id not in taken:
            new_id = new_entry_id(taken)
            taken.add(new_id)
        else:
            new_id = id
        places.append((new_id, parent))
        if each.id is not None:
            ids[each.id] = new_id
    return EntryTree(places, ids)


def _parent(
    each: EntryLink, before: str | None, lines: dict[str, int], ids: dict[str, str], reading: Reading
) -> str | None:
    if not each.has_parent_field:
        return before
    if each.parent is None:
        return None
    if each.parent in ids and each.parent != each.id:
        return ids[each.parent]
    if each.parent == each.id:
        reading.handle_fault(each.line, "follows itself", FOLLOWS_PREVIOUS)
    elif each.parent in lines:
        where = lines[each.parent]
        reading.handle_fault(
            each.line,
            f"follows line {where}, which comes later; the entries are out of order or form a cycle",
            FOLLOWS_PREVIOUS,
        )
    else:
        reading.handle_fault(
            each.line, f"follows the entry {each.parent[:40]!r}, which does not exist", FOLLOWS_PREVIOUS
        )
    return before
