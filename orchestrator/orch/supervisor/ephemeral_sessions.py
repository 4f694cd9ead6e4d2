"""Sessions that are not stored on disk. The session folders are in memory and disappear with the root."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path
from typing import Final

from orch_protocol.core.errors import LockedError, OrchError, SpawnError
from orch_protocol.core.ids import new_id
from orch_worker.session.log.lock import FolderLock, file_system

from ..config import paths

__all__ = ["MEMORY", "EphemeralSessions", "is_in_memory"]

MEMORY: Final = Path("/dev/shm")
KINDS: Final = frozenset({"tmpfs", "ramfs"})


class EphemeralSessions:
    """The in-memory session folders of one root. The first use creates the parent folder.

    The folders of a killed root remain. The next root that needs in-memory folders removes them.
    """

    def __init__(self, memory: Path | None = None) -> None:
        self._memory = memory or MEMORY
        self._lock: FolderLock | None = None

    def folder(self, id: str) -> Path:
        """Return the session folder of the agent `id`. Raises SpawnError if there is no in-memory file system."""
        if self._lock is None:
            self._lock = self._open_parent()
        return self._lock.folder / id

    def drop(self, folder: Path) -> None:
        """Delete one session folder."""
        shutil.rmtree(folder, ignore_errors=True)

    def close(self) -> None:
        """Delete all session folders of this root."""
        if self._lock is not None:
            lock, self._lock = self._lock, None
            shutil.rmtree(lock.folder, ignore_errors=True)
            lock.release()

    def _open_parent(self) -> FolderLock:
        if not is_in_memory(self._memory):
            raise SpawnError(
                f"persist=False needs an in-memory file system at {self._memory}, which this machine does not have; "
                "store the session and delete its folder afterwards"
            )
        base = Path(paths.shared_folder(str(self._memory)))
        for old_folder in base.iterdir():
            try:
                lock = FolderLock.acquire(old_folder)
            except (LockedError, OrchError, OSError):
                continue  # its root is still running
            shutil.rmtree(old_folder, ignore_errors=True)
            lock.release()
        return FolderLock.acquire(base / new_id())


def is_in_memory(folder: Path) -> bool:
    """Return whether `folder` exists and belongs to an in-memory file system."""
    return folder.is_dir() and (sys.platform != "linux" or file_system(folder) in KINDS)
