"""Sessions that are on no disk: their folders lie in memory, and are gone with the root, however that ends."""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path
from typing import Final

from orch_protocol.core.errors import LockedError, OrchError, SpawnError
from orch_protocol.core.ids import new_id
from orch_worker.session.log.lock import FolderLock, file_system

from ..config import paths

__all__ = ["MEMORY", "EphemeralSessions"]

MEMORY: Final = Path("/dev/shm")
KINDS: Final = frozenset({"tmpfs", "ramfs"})


class EphemeralSessions:
    """The folders of the sessions of one root that are not to be kept. None is made before it is needed.

    One root that was killed leaves its own behind; the next that needs some removes them.
    """

    def __init__(self, memory: Path | None = None) -> None:
        self._memory = memory or MEMORY
        self._lock: FolderLock | None = None

    def folder(self, id: str) -> Path:
        """Return where the agent `id` is to have its session. Raises SpawnError where there is no such memory."""
        if self._lock is None:
            self._lock = self._opened()
        return self._lock.folder / id

    def drop(self, folder: Path) -> None:
        """Let a session be gone."""
        shutil.rmtree(folder, ignore_errors=True)

    def close(self) -> None:
        """Let all of them be gone."""
        if self._lock is not None:
            lock, self._lock = self._lock, None
            shutil.rmtree(lock.folder, ignore_errors=True)
            lock.release()

    def _opened(self) -> FolderLock:
        if not self._memory.is_dir() or (sys.platform == "linux" and file_system(self._memory) not in KINDS):
            raise SpawnError(
                f"persist=False needs a file system in memory at {self._memory}, and there is none here: "
                "let the session be kept, and delete its folder afterwards"
            )
        base = self._memory / f"orch-{os.getuid()}"
        paths.check_private_folder(str(base))
        for left in base.iterdir():
            try:
                lock = FolderLock.acquire(left)
            except (LockedError, OrchError, OSError):
                continue  # its root is alive
            shutil.rmtree(left, ignore_errors=True)
            lock.release()
        return FolderLock.acquire(base / new_id())
