"""Copies of a session's conversation: one path through its entries, or all branches."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from msgspec.structs import replace

from orch_protocol.agent.spec import BackendSpec
from orch_protocol.core.ids import new_entry_id
from orch_protocol.session.entries import Checkout, Label, ModelChange, SessionInfo
from orch_worker.session.session_index import SessionIndex, read_session_index
from orch_worker.session.transcript import NAME

from .formats.conversation import ImportedSession, Reading, Told
from .formats.native import read_own

__all__ = ["copy_conversation"]


def copy_conversation(
    folder: Path, at: str | None, *, all: bool, model: BackendSpec | None, now: str
) -> ImportedSession:
    """Return a copy of the session in `folder` that continues after the entry or turn `at` (None: where it is now).

    The copy has the path to that entry, or with `all` every entry. Labels and the title are included wherever they
    were set. With `model` a model change is added at the end. Raises EntryNotFoundError, AmbiguousRefError, StoreError.
    """
    outline = read_session_index(folder)
    to = outline.leaf if at is None else outline.find(at)
    found = read_own((folder / NAME).read_bytes(), Reading(folder / NAME, repair=True))
    copied = list(found.entries) if all else _path_to(found, to)
    taken = {entry.id for entry in found.entries}
    if all and to != outline.leaf:
        id = new_entry_id(taken)
        taken.add(id)
        copied.append(Checkout(id=id, parent_id=to, timestamp=now, from_id=outline.leaf))
    if not all:
        copied += _labels_and_title(outline, copied, taken, now)
    if model is not None:
        entry = ModelChange(**_next(copied, taken, now), provider=model.provider, model_id=model.model, own=True)
        copied.append(entry)
    return replace(found, entries=tuple(copied))


def _path_to(found: ImportedSession, to: str | None) -> list[Told]:
    by_id = {entry.id: entry for entry in found.entries}
    path: list[Told] = []
    while to is not None and (entry := by_id.get(to)) is not None:
        path.append(entry)
        to = entry.parent_id
    return path[::-1]


def _labels_and_title(outline: SessionIndex, path: list[Told], taken: set[str], now: str) -> list[Told]:
    """Return entries for the labels and the title that were set on other branches."""
    added: list[Told] = []
    on_path = {entry.id for entry in path}
    there = {entry.target_id: entry.label for entry in path if isinstance(entry, Label)}
    for target, label in outline.labels.items():
        if target in on_path and there.get(target) != label:
            added.append(Label(**_next([*path, *added], taken, now), target_id=target, label=label))
    titles = [entry.name for entry in path if isinstance(entry, SessionInfo)]
    if outline.name and titles[-1:] != [outline.name]:
        added.append(SessionInfo(**_next([*path, *added], taken, now), name=outline.name))
    return added


def _next(path: list[Told], taken: set[str], now: str) -> dict[str, Any]:
    id = new_entry_id(taken)
    taken.add(id)
    return {"id": id, "parent_id": path[-1].id if path else None, "timestamp": now}
