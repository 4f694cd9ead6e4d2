"""Deletes archives of one agent from the agent's folder.

A deletion affects the session file, the index, stored values, and the sessions of holders. The atomic replacement of
the session file commits the deletion. The index is removed before this replacement, and `finish_deletion` removes all
other data afterwards. It finds this data by reading the new file, so it can also complete a deletion whose process was
killed.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

from msgspec import Struct

from orch_worker.session.entry_codec import DECODE_ERRORS, MESSAGE_PREFIXES, decode_turn
from orch_worker.session.log.atomic_rewrite import discard_unfinished
from orch_worker.session.log.lock import FolderLock
from orch_worker.session.session_reader import NAME
from orch_worker.system.files import io_error, sync_folder
from orch_worker.tools.python import namespace
from orch_worker.tools.values.store import HANDLE, delete_other_values

from ...tree.agents.state import iso_time
from .prune import ArchivesToDelete, ContentToDelete, entries_to_delete, rewrite_session_file
from .search import Search
from .session_archives import SessionArchives

__all__ = [
    "HOLDERS",
    "DeletedContent",
    "bytes_in",
    "delete_archives",
    "finish_deletion",
    "remove_sessions",
    "session_bytes",
    "turns_of_sessions",
]

HOLDERS = "holders"
"""The folder that contains the sessions of an agent's holders. Its parent is the agent's folder."""
TORN_FILES = "session.jsonl.torn-*"
DAMAGED_FILES = "session.jsonl.damaged-*"


class DeletedContent(Struct, frozen=True):
    """All deleted content of a session.

    `archives` maps the ids of archives to the times of their deletion. `turns` maps the ids of queries to the times at
    which their replies were deleted.
    """

    archives: dict[str, str]
    turns: dict[str, str]


def delete_archives(archives: SessionArchives, search: Search, which: ArchivesToDelete, when: str) -> ContentToDelete:
    """Delete the archives that `which` selects. `when` is the time of the deletion (ISO 8601).

    Neither the agent nor the holders of these archives may have a process. The caller must
    call `finish_deletion` afterwards. Raises StoreError. Raises LockedError if the agent or a holder has a process.
    After an error, nothing was deleted.
    """
    with _locked(archives.folder):
        archives.catch_up()
        content = entries_to_delete(archives, which)
        if content.due:
            search.forget()
            rewrite_session_file(archives, content, when)
            archives.forget()
            archives.catch_up()
        return content


def finish_deletion(archives: SessionArchives, *, rewritten: bool) -> DeletedContent:
    """Remove the sessions of the holders of deleted archives. Return the deleted content of the session.

    If `rewritten` is True, also remove other data that may contain deleted content. This data consists of stored values
    that the session no longer refers to, saved names of Python variables, torn tails that are not newer than the
    deleted archives, and damaged session files that repairs kept. Raises LockedError if the agent has a process. Raises
    StoreError.
    """
    folder = archives.folder
    with _locked(folder):
        discard_unfinished(archives.path)
        archives.catch_up()
        deleted = [record for record in archives.records.values() if record.deleted]
        if rewritten:
            with open(archives.path, "rb") as file:
                delete_other_values(folder, {handle.decode() for line in file for handle in HANDLE.findall(line)})
            namespace.forget(folder)
            _remove_torn(folder, max((record.timestamp for record in deleted), default=""))
            for damaged in folder.glob(DAMAGED_FILES):
                damaged.unlink()
        remove_sessions(folder / HOLDERS, [record.id for record in deleted])
        return DeletedContent({record.id: record.deleted for record in deleted}, dict(archives.deleted_replies))


@contextmanager
def _locked(folder: Path) -> Iterator[None]:
    lock = FolderLock.acquire(folder)
    try:
        yield
    except OSError as error:
        raise io_error("delete archives in", folder, error) from error
    finally:
        lock.release()


def session_bytes(folder: Path, holders: Sequence[str]) -> int:
    """Return the total size of the sessions of these `holders`, in bytes. `folder` belongs to their agent."""
    return sum(bytes_in(folder / HOLDERS / id) for id in holders)


def bytes_in(folder: Path) -> int:
    """Return the total size in bytes of the files below `folder`."""
    return sum(file.lstat().st_size for file in folder.rglob("*") if file.is_file())


def _remove_torn(folder: Path, until: str) -> None:
    """Remove torn tails of the session file that were written up to the time `until`.

    Torn tails may belong to deleted turns.
    """
    for torn in folder.glob(TORN_FILES):
        if iso_time(torn.stat().st_mtime) <= until:
            torn.unlink()


def turns_of_sessions(folder: Path, names: Iterable[str]) -> dict[str, set[str]]:
    """Return the turns in the sessions with the names `names` in `folder`, by name. Raises OSError."""
    turns: dict[str, set[str]] = {}
    for name in names:
        if not (path := folder / name / NAME).is_file():
            continue
        turns[name] = set()
        for line in path.read_bytes().split(b"\n"):
            if line.startswith(MESSAGE_PREFIXES):
                with suppress(*DECODE_ERRORS):
                    turns[name].add(decode_turn(line).turn)
    return turns


def remove_sessions(folder: Path, names: Iterable[str]) -> None:
    """Remove the sessions with the names `names` in `folder`. Raises LockedError if a session is open, OSError."""
    existing = [folder / name for name in names if (folder / name).is_dir()]
    for session in existing:
        lock = FolderLock.acquire(session)
        try:
            shutil.rmtree(session)
        finally:
            lock.release()
    if existing:
        sync_folder(folder)
