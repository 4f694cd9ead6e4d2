"""Session folders on disk. This module lists, reads and labels sessions without an agent or a process."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from msgspec import Struct

from orch_protocol.core.errors import AgentNotFoundError, AmbiguousRefError, ConfigError, ForeignFileError, StoreError
from orch_protocol.core.ids import new_entry_id
from orch_protocol.core.messages import Message
from orch_protocol.core.text import scrub
from orch_protocol.services.sessions.sessions import SessionTree
from orch_protocol.session.tree import SessionEdit, SetLabel
from orch_worker.session.session_index import ROOT_NAME, SessionIndex, read_session_index
from orch_worker.session.session_reader import NAME, read_header
from orch_worker.session.transcript import Transcript

from ..tree.agents.state import iso_time
from .copy_session import copy_conversation
from .export import MESSAGE_ENTRIES

__all__ = [
    "StoredSession",
    "check_label",
    "find_session",
    "label_entry",
    "list_sessions",
    "read_messages",
    "read_tree",
    "session_folder",
]


class StoredSession(Struct, frozen=True):
    """A session on disk.

    `id` is the id of the session's agent, and `folder` is the session folder. `cwd` is the working folder of the
    agent's tools. `parent_session` is the session or file from which the session was copied, None for a new session.
    `created` and `modified` are ISO 8601 times. `bytes` is the size of the session file.
    """

    id: str
    folder: str
    cwd: str
    parent_session: str | None
    created: str
    modified: str
    bytes: int


def list_sessions(sessions: Path) -> list[StoredSession]:
    """Return every session below the folder `sessions`.

    The session that was modified last comes first. Other files are skipped.
    """
    found = [each for folder in _folders(sessions) if (each := _stored(folder)) is not None]
    return sorted(found, key=lambda each: each.modified, reverse=True)


def find_session(sessions: Path, ref: str) -> Path:
    """Return the folder of the session whose agent id is `ref` or starts with `ref`.

    Raises AgentNotFoundError, AmbiguousRefError.
    """
    found = [folder for folder in _folders(sessions) if ref and folder.name.startswith(ref)]
    if not found:
        raise AgentNotFoundError(
            f"no session {ref[:80]!r}: give an agent's id or name, or the path of a session folder"
        )
    exact = [folder for folder in found if folder.name == ref]
    if len(found) > 1 and not exact:
        raise AmbiguousRefError(f"{ref!r} is a prefix of {len(found)} session ids; give more characters")
    return (exact or found)[0]


def session_folder(path: str) -> Path:
    """Return the session folder at `path`. Raises ConfigError.

    `path` is a session folder or the session file in this folder.
    """
    place = Path(path).expanduser().absolute()
    folder = place.parent if place.name == NAME else place
    if not (folder / NAME).is_file():
        raise ConfigError(
            f"{path} is not an orch session: give a session folder or its {NAME}. To continue a conversation from "
            "another file, use sessions.import_"
        )
    return folder


def read_tree(folder: Path, limit: int | None = None) -> SessionTree:
    """Return the session in `folder` with its last `limit` entries. If `limit` is None, return all entries.

    Raises ForeignFileError, StoreError.
    """
    outline = read_session_index(folder)
    header, rows = outline.header, outline.rows()
    model, thinking = outline.model_at(outline.leaf)
    return SessionTree(
        id=header.agent if header else "",
        name="",
        title=outline.name,
        folder=str(folder),
        cwd=header.cwd if header else "",
        parent_session=header.parent_session if header else None,
        leaf=outline.leaf,
        entries=tuple(rows[max(0, len(rows) - limit) :] if limit is not None else rows),
        count=len(rows),
        branches=tuple(outline.branches()),
        labels=outline.labels,
        model=model,
        thinking=thinking,
    )


def read_messages(folder: Path, entry: str | None = None) -> list[Message]:
    """Return the messages of the conversation up to the entry `entry`. If `entry` is None, return all messages.

    Archived messages are in their original places. Raises EntryNotFoundError, AmbiguousRefError, ForeignFileError,
    StoreError.
    """
    found = copy_conversation(folder, entry, all=False, model=None, now="")
    return [each.message for each in found.entries if isinstance(each, MESSAGE_ENTRIES)]


def label_entry(folder: Path, entry: str, label: str | None) -> None:
    """Set the label of an entry. If `label` is None, remove the label.

    The folder is locked during the change. Raises LockedError if another process has the session open,
    EntryNotFoundError, ConfigError, StoreError.
    """
    outline = read_session_index(folder)
    if outline.header is None:
        raise ForeignFileError(f"{folder / NAME} has no header: it is not an orch session")
    change = check_label(outline, SetLabel(entry, label))
    transcript = Transcript.open(folder, agent=outline.header.agent, cwd=outline.header.cwd)
    try:
        transcript.change(SessionEdit(new_entry_id(outline.lineage.places), change))
    finally:
        transcript.close()


def check_label(outline: SessionIndex, change: SetLabel) -> SetLabel:
    """Return `change` with the full id of the entry.

    Raises ConfigError if the label is in use. Raises EntryNotFoundError.
    """
    target = outline.find(change.target)
    if target is None:
        raise ConfigError("the beginning has no entry that can get a label; name an entry")
    label = change.label.strip() if change.label else ""
    if label == ROOT_NAME or label in outline.lineage.places:
        what = "the beginning" if label == ROOT_NAME else "an entry"
        raise ConfigError(f"{label!r} already means {what}; choose another label")
    taken = next((id for id, each in outline.labels.items() if each == label and id != target), None)
    if taken is not None:
        raise ConfigError(
            f"label {label!r} is already used by entry {taken}; choose another label, or remove that label first"
        )
    return SetLabel(target, scrub(label) or None)


def _folders(sessions: Path) -> Iterator[Path]:
    try:
        yield from (each for each in sessions.iterdir() if (each / NAME).is_file())
    except FileNotFoundError:
        return
    except OSError as error:
        raise StoreError(f"cannot read {sessions}: {error.strerror}") from error


def _stored(folder: Path) -> StoredSession | None:
    try:
        header = read_header(folder / NAME)
        stat = (folder / NAME).stat()
    except (ForeignFileError, StoreError, OSError):
        return None
    if header is None:
        return None
    return StoredSession(
        id=header.agent,
        folder=str(folder),
        cwd=header.cwd,
        parent_session=header.parent_session,
        created=header.timestamp,
        modified=iso_time(stat.st_mtime),
        bytes=stat.st_size,
    )
