"""A lock that ensures that a folder has only one owner."""

from __future__ import annotations

import contextlib
import fcntl
import os
from functools import cache
from pathlib import Path
from typing import Final

from orch_protocol.core.errors import LockedError, StoreError

from ...system.files import io_error, open_regular

__all__ = ["FolderLock", "file_system", "owner_of", "private_folder"]

MOUNTS: Final = "/proc/self/mountinfo"
REMOTE: Final = frozenset({"nfs", "nfs4", "cifs", "smb3"})


class FolderLock:
    """Ownership of a folder, based on `flock` of the file `lock` in the folder.

    The ownership ends with `release` or with the process.

    A forked Python process releases its copy of the lock. Otherwise, the forked process would keep the folder locked
    after the end of the owner.
    """

    def __init__(self, folder: Path, descriptor: int) -> None:
        self.folder = folder
        self._descriptor = descriptor
        _register_fork_handler()
        _held.add(self)

    @classmethod
    def acquire(cls, folder: Path, alternative: str = "another folder") -> FolderLock:
        """Lock `folder`. Create the folder with mode 0700 if necessary. This method never waits.

        Raise LockedError if the folder is locked. The error names the owner, and `alternative` as what the user can
        choose instead. Raise StoreError if the folder is not writable. Also raise StoreError for a network file system,
        where a lock may be valid on one machine only.
        """
        private_folder(folder)
        kind = file_system(folder)
        if kind in REMOTE:
            raise StoreError(
                f"{folder} is on a network file system ({kind}), where locks cannot be trusted: "
                "choose a folder on a local disk"
            )
        descriptor = open_regular(folder / "lock", os.O_RDWR | os.O_CREAT)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            os.ftruncate(descriptor, 0)
            os.pwrite(descriptor, b"%d\n" % os.getpid(), 0)
        except BlockingIOError as error:
            owner = os.pread(descriptor, 20, 0).strip().decode(errors="replace") or "unknown"
            os.close(descriptor)
            remedy = "end this process"
            if owner == str(os.getpid()):
                remedy = "this program has opened the folder before; close that first, for example its Archiver"
            raise LockedError(f"{folder} is in use by process {owner}: {remedy}, or choose {alternative}") from error
        except OSError as error:
            os.close(descriptor)
            raise io_error("lock", folder, error) from error
        return cls(folder, descriptor)

    def holds(self) -> bool:
        """Return whether this lock still protects the folder.

        Return False if the folder was removed or the lock file replaced.
        """
        if self._descriptor < 0:
            return False
        try:
            status = os.stat(self.folder / "lock")
        except (FileNotFoundError, NotADirectoryError):
            return False
        except OSError:
            return True  # The lock file is not accessible, neither for this process nor for other processes.
        return os.path.samestat(status, os.fstat(self._descriptor))

    def release(self) -> None:
        """Release the lock. Calling this method twice is allowed."""
        # Keep the lock file, because removing it could interfere with the next owner, who may be opening it. An empty
        # file shows that the owner has released the lock, although its process may still be running.
        if self._descriptor >= 0:
            with contextlib.suppress(OSError):
                os.ftruncate(self._descriptor, 0)
        self.close()

    def close(self) -> None:
        """Close this process's copy of the lock. The file still names the owner."""
        _held.discard(self)
        if self._descriptor >= 0:
            descriptor, self._descriptor = self._descriptor, -1
            os.close(descriptor)


def owner_of(folder: Path) -> str:
    """Return the number of the process that locked `folder` last, or "unknown"."""
    descriptor = open_regular(folder / "lock", os.O_RDONLY)
    try:
        return os.pread(descriptor, 20, 0).strip().decode(errors="replace") or "unknown"
    finally:
        os.close(descriptor)


_held: set[FolderLock] = set()


@cache
def _register_fork_handler() -> None:
    os.register_at_fork(after_in_child=_release_all)


def _release_all() -> None:
    for lock in list(_held):
        lock.close()


def private_folder(folder: Path) -> None:
    """Create `folder` and missing parents with mode 0700. Raise StoreError on failure."""
    try:
        if folder.is_dir():
            return
        if folder.parent != folder:
            private_folder(folder.parent)
        folder.mkdir(mode=0o700, exist_ok=True)
    except OSError as error:
        raise io_error("create", folder, error) from error


def file_system(folder: Path) -> str:
    """Return the type of the file system of `folder`. Return "" for a local device or an unknown type."""
    device = folder.stat().st_dev
    if os.major(device):
        return ""
    try:
        mounts = Path(MOUNTS).read_text(errors="replace")
    except OSError:
        return ""
    return _mounted_type(mounts, f"{os.major(device)}:{os.minor(device)}")


def _mounted_type(mounts: str, device: str) -> str:
    for line in mounts.split("\n"):
        mount, _, kind = line.partition(" - ")
        if mount.split()[2:3] == [device]:
            return kind.partition(" ")[0]
    return ""
