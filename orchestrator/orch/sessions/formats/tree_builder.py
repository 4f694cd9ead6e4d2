"""Which entry follows which, as a file says it: ids made ours, parents before their children, no circles."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Final, NamedTuple

from orch_protocol.core.ids import new_entry_id

from .conversation import Reading

__all__ = ["Grafted", "Named", "graft"]

OURS: Final = re.compile(r"[0-9a-f]{8}")
BEFORE: Final = "it is put behind the entry before it"


class Named(NamedTuple):
    """What a line says of its place: its own id and its parent's, as they are there. `told` is whether it says so."""

    line: int
    id: str | None
    parent: str | None
    told: bool = True


class Grafted(NamedTuple):
    """The tree: for each entry its id and its parent's, and what each id of the file became."""

    places: list[tuple[str, str | None]]
    ids: dict[str, str]


def graft(entries: Iterable[Named], reading: Reading) -> Grafted:
    """Return where `entries` stand in a tree of ours. Raises DamagedError, naming the line, when they make no tree."""
    named = list(entries)
    lines: dict[str, int] = {}
    for each in named:
        if each.id is not None:
            lines.setdefault(each.id, each.line)
    taken = {id for id in lines if OURS.fullmatch(id)}
    ids: dict[str, str] = {}
    places: list[tuple[str, str | None]] = []
    for each in named:
        before = places[-1][0] if places else None
        parent = _parent(each, before, lines, ids, reading)
        id = each.id
        if id is not None and id in ids:
            reading.fault(each.line, f"has the id {id[:40]!r} of line {lines[id]}", "it gets one of its own")
            id = None
        if id is None or id not in taken:
            made = new_entry_id(taken)
            taken.add(made)
        else:
            made = id
        places.append((made, parent))
        if each.id is not None:
            ids[each.id] = made
    return Grafted(places, ids)


def _parent(
    each: Named, before: str | None, lines: dict[str, int], ids: dict[str, str], reading: Reading
) -> str | None:
    if not each.told:
        return before
    if each.parent is None:
        return None
    if each.parent in ids and each.parent != each.id:
        return ids[each.parent]
    if each.parent == each.id:
        reading.fault(each.line, "follows itself", BEFORE)
    elif each.parent in lines:
        where = lines[each.parent]
        reading.fault(
            each.line, f"follows line {where}, which comes after it: they are out of order, or a circle", BEFORE
        )
    else:
        reading.fault(each.line, f"follows the entry {each.parent[:40]!r}, which is not there", BEFORE)
    return before
