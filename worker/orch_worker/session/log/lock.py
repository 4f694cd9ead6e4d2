"""One owner a folder."""

from __future__ import annotations

import fcntl
import os
from functools import cache
from pathlib import Path
from typing import Final

from orch_protocol.core.errors import LockedError, StoreError

from ...system.files import io_error, open_regular

__all__ = ["FolderLock", "file_system", "private_folder"]

MOUNTS: Final = "/proc/self/mountinfo"
REMOTE: Final = frozenset({"nfs", "nfs4", "cifs", "smb3"})


class FolderLock:
    """The ownership of a folder, by `flock` on the file `lock` in it. Ends with `release`, or with the process.

    A process that Python forks from the owner has no part in it: else it would keep the folder when the owner is gone.
    """

    def __init__(self, folder: Path, descriptor: int) -> None:
        self.folder = folder
        self._descriptor = descriptor
        _see_to_forks()
        _held.add(self)

    @classmethod
    def acquire(cls, folder: Path) -> FolderLock:
        """Take `folder`, creating it (mode 0700) if need be. Never waits.

        Raises LockedError naming the owner when it is taken, StoreError when the folder cannot be written or lies on
        a network file system, where a lock may bind one machine only.
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
            raise LockedError(f"{folder} is in use by process {owner}: end that, or choose another folder") from error
        except OSError as error:
            os.close(descriptor)
            raise io_error("lock", folder, error) from error
        return cls(folder, descriptor)

    def holds(self) -> bool:
        """Say whether the folder is still ours: not when it was removed, or somebody put another lock there."""
        if self._descriptor < 0:
            return False
        try:
            there = os.stat(self.folder / "lock")
        except (FileNotFoundError, NotADirectoryError):
            return False
        except OSError:
            return True  # it cannot be looked at, by others neither
        return os.path.samestat(there, os.fstat(self._descriptor))

    def release(self) -> None:
        """Give the folder up; doing so twice does nothing."""
        # The file stays: removing it would race with the next owner's opening it.
        _held.discard(self)
        if self._descriptor >= 0:
            descriptor, self._descriptor = self._descriptor, -1
            os.close(descriptor)


_held: set[FolderLock] = set()


@cache
def _see_to_forks() -> None:
    os.register_at_fork(after_in_child=_release_all)


def _release_all() -> None:
    for lock in list(_held):
        lock.release()


def private_folder(folder: Path) -> None:
    """Create `folder` and its missing parents, each with mode 0700. Raises StoreError when that cannot be done."""
    try:
        if folder.is_dir():
            return
        if folder.parent != folder:
            private_folder(folder.parent)
        folder.mkdir(mode=0o700, exist_ok=True)
    except OSError as error:
        raise io_error("create", folder, error) from error


def file_system(folder: Path) -> str:
    """Return the type of the file system `folder` lies on, "" when it is on a device of this machine or unknown."""
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
