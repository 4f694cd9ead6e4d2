"""Deleting archives of one agent from its folder: from the session file, the index, the stash, and their own sessions.

The session file comes first and is the truth. Whoever is killed behind it has left things that nothing leads to any
more: deleting again, be it nothing, takes them away.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterable, Sequence
from datetime import datetime
from pathlib import Path

from msgspec import Struct

from orch_worker.session.log.lock import FolderLock
from orch_worker.system.files import io_error, sync_folder
from orch_worker.tools.python import namespace
from orch_worker.tools.values.store import keep_only

from .prune import Doomed, entries_to_delete, rewrite_session_file
from .search import Search
from .session_archives import SessionArchives

__all__ = ["HOLDERS", "DeletionResult", "bytes_in", "delete_archives", "remove_sessions", "session_bytes"]

HOLDERS = "holders"
"""Where in an agent's folder its holders have theirs."""
TORN = "session.jsonl.torn-*"
DAMAGED = "session.jsonl.damaged-*"


class DeletionResult(Struct, frozen=True):
    """What was deleted now (`going`), of archives whose own sessions had `bytes` bytes; and all that ever was: when, by
    the archive's id, and by the query id of turns whose answers went along."""

    going: Doomed
    bytes: int
    archives: dict[str, str]
    turns: dict[str, str]


def delete_archives(ledger: SessionArchives, search: Search, before: str, when: str) -> DeletionResult:
    """Delete the archives made at `before` or earlier, at the time `when`. Both are ISO 8601.

    The agent and the holders of these archives have no process. Raises LockedError when one has, StoreError.
    """
    folder, until = ledger.folder, datetime.fromisoformat(before).timestamp()
    lock = FolderLock.acquire(folder)
    try:
        ledger.catch_up()
        going = entries_to_delete(ledger, before)
        size = session_bytes(folder, [record.id for record in going.records])
        if going.due:
            search.forget()
            handles = rewrite_session_file(ledger, going, when)
            ledger.forget()
            ledger.catch_up()
            keep_only(folder, {handle.decode() for handle in handles})
            namespace.forget(folder)
            _remove_torn(folder, until)
            for damaged in folder.glob(DAMAGED):
                damaged.unlink()  # what is deleted is in it, whatever else is
        dead = {record.id: record.deleted for record in ledger.records.values() if record.deleted}
        remove_sessions(folder / HOLDERS, dead)
        return DeletionResult(going, size, dead, dict(ledger.forgotten))
    except OSError as error:
        raise io_error("delete archives in", folder, error) from error
    finally:
        lock.release()


def session_bytes(folder: Path, holders: Sequence[str]) -> int:
    """Return how large the sessions of `holders` of the agent in `folder` are, in bytes."""
    return sum(bytes_in(folder / HOLDERS / holder) for holder in holders)


def bytes_in(folder: Path) -> int:
    """Return how large the files below `folder` are together, in bytes."""
    return sum(file.lstat().st_size for file in folder.rglob("*") if file.is_file())


def _remove_torn(folder: Path, before: float) -> None:
    """Remove what was cut off the session file by then: it may be of the turns that are deleted."""
    for torn in folder.glob(TORN):
        if torn.stat().st_mtime <= before:
            torn.unlink()


def remove_sessions(folder: Path, names: Iterable[str]) -> None:
    """Remove the sessions `names` in `folder`, which nobody has open. Raises LockedError when somebody has, OSError."""
    there = [folder / name for name in names if (folder / name).is_dir()]
    for session in there:
        lock = FolderLock.acquire(session)
        try:
            shutil.rmtree(session)
        finally:
            lock.release()
    if there:
        sync_folder(folder)
