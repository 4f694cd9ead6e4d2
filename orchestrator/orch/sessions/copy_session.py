"""Copies of a session's conversation. A copy contains one path through the entries, or all branches."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from msgspec.structs import replace

from orch_protocol.agent.spec import BackendSpec
from orch_protocol.core.ids import new_entry_id
from orch_protocol.session.entries import Checkout, Label, ModelChange, SessionInfo
from orch_worker.session.session_index import SessionIndex, read_session_index
from orch_worker.session.session_reader import NAME

from .formats.conversation import ImportedEntry, ImportedSession, Reading
from .formats.native import read_orch_session

__all__ = ["copy_conversation"]


def copy_conversation(
    folder: Path, entry_id: str | None, *, all: bool, model: BackendSpec | None, now: str
) -> ImportedSession:
    """Return a copy of the session in `folder`.

    The copy continues after the entry or turn `entry_id`. If `entry_id` is None, it continues after the current leaf.
    The copy contains the path to that entry, or every entry if `all` is True. Labels and the title are copied from all
    branches. If `model` is set, the copy ends with a change of the model. Raises EntryNotFoundError, AmbiguousRefError,
    StoreError.
    """
    outline = read_session_index(folder)
    leaf_id = outline.leaf if entry_id is None else outline.find(entry_id)
    conversation = read_orch_session((folder / NAME).read_bytes(), Reading(folder / NAME, repair=True))
    copied = list(conversation.entries) if all else _path_to(conversation, leaf_id)
    taken = {entry.id for entry in conversation.entries}
    if all and leaf_id != outline.leaf:
        id = new_entry_id(taken)
        taken.add(id)
        copied.append(Checkout(id=id, parent_id=leaf_id, timestamp=now, from_id=outline.leaf))
    if not all:
        copied += _labels_and_title(outline, copied, taken, now)
    if model is not None:
        entry = ModelChange(
            **_new_entry_fields(copied, taken, now), provider=model.provider, model_id=model.model, own=True
        )
        copied.append(entry)
    return replace(conversation, entries=tuple(copied))


def _path_to(conversation: ImportedSession, leaf_id: str | None) -> list[ImportedEntry]:
    by_id = {entry.id: entry for entry in conversation.entries}
    path: list[ImportedEntry] = []
    while leaf_id is not None and (entry := by_id.get(leaf_id)) is not None:
        path.append(entry)
        leaf_id = entry.parent_id
    return path[::-1]


def _labels_and_title(
    outline: SessionIndex, path: list[ImportedEntry], taken: set[str], now: str
) -> list[ImportedEntry]:
    """Return entries for the labels and the title that were set on other branches."""
    added: list[ImportedEntry] = []
    on_path = {entry.id for entry in path}
    path_labels = {entry.target_id: entry.label for entry in path if isinstance(entry, Label)}
    for target, label in outline.labels.items():
        if target in on_path and path_labels.get(target) != label:
            added.append(Label(**_new_entry_fields([*path, *added], taken, now), target_id=target, label=label))
    titles = [entry.name for entry in path if isinstance(entry, SessionInfo)]
    if outline.name and titles[-1:] != [outline.name]:
        added.append(SessionInfo(**_new_entry_fields([*path, *added], taken, now), name=outline.name))
    return added


def _new_entry_fields(path: list[ImportedEntry], taken: set[str], now: str) -> dict[str, Any]:
    id = new_entry_id(taken)
    taken.add(id)
    return {"id": id, "parent_id": path[-1].id if path else None, "timestamp": now}
