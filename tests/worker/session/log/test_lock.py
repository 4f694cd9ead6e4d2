"""The lock of a folder: at most one process owns a folder."""

from __future__ import annotations

import errno
import fcntl
import os
from pathlib import Path

import pytest

from orch_protocol.core.errors import LockedError, StoreError
from orch_worker.session.log import lock
from orch_worker.session.log.lock import FolderLock, private_folder


def test_second_lock_attempt_names_the_owner(tmp_path: Path) -> None:
    """The error names the folder and the process; a released folder can be locked again."""
    owner = FolderLock.acquire(tmp_path)
    with pytest.raises(LockedError, match=f"{tmp_path} is in use by process {os.getpid()}:"):
        FolderLock.acquire(tmp_path)
    owner.release()
    owner.release()
    FolderLock.acquire(tmp_path).release()


def test_owner_notices_a_replaced_lock_folder(tmp_path: Path) -> None:
    """`holds` is false after the folder is moved, replaced by another locked folder, or replaced by a file."""
    folder = tmp_path / "f"
    owner = FolderLock.acquire(folder)
    assert owner.holds()
    os.rename(folder, tmp_path / "moved")
    assert not owner.holds()
    other = FolderLock.acquire(folder)
    assert (owner.holds(), other.holds()) == (False, True)
    os.unlink(folder / "lock")
    os.rmdir(folder)
    folder.write_text("")
    assert not other.holds()
    owner.release()
    other.release()
    assert not owner.holds()


def test_refused_lock_leaks_no_descriptor(tmp_path: Path) -> None:
    owner = FolderLock.acquire(tmp_path)
    before = len(os.listdir("/proc/self/fd"))
    for _ in range(5):
        with pytest.raises(LockedError):
            FolderLock.acquire(tmp_path)
    assert len(os.listdir("/proc/self/fd")) == before
    owner.release()


def test_lock_file_of_a_dead_owner_is_reused(tmp_path: Path) -> None:
    """The new owner overwrites the content of the lock file."""
    (tmp_path / "lock").write_text("12345678901234567890\nnonsense")
    owner = FolderLock.acquire(tmp_path)
    assert (tmp_path / "lock").read_text() == f"{os.getpid()}\n"
    owner.release()


def test_lock_is_private_and_not_inherited(tmp_path: Path) -> None:
    """The lock file has mode 0600, and its descriptor is closed in programs that the owner starts."""
    owner = FolderLock.acquire(tmp_path)
    assert fcntl.fcntl(owner._descriptor, fcntl.F_GETFD) & fcntl.FD_CLOEXEC
    assert (tmp_path / "lock").stat().st_mode & 0o777 == 0o600
    owner.release()


def test_missing_folders_are_created_private(tmp_path: Path) -> None:
    """Each created folder has mode 0700."""
    folder = tmp_path / "a" / "b" / "c"
    FolderLock.acquire(folder).release()
    for made in (folder, folder.parent, folder.parent.parent):
        assert made.stat().st_mode & 0o777 == 0o700


@pytest.mark.parametrize(("error", "words"), [(errno.EROFS, "read-only"), (errno.EACCES, "is it read-only")])
def test_read_only_folder_is_named_in_the_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: int, words: str
) -> None:
    """If the lock file cannot be created, the error names its path and the cause."""

    def refuse(*_: object) -> int:
        raise OSError(error, os.strerror(error))

    monkeypatch.setattr(os, "open", refuse)
    with pytest.raises(StoreError, match=f"cannot open {tmp_path}/lock: .*{words}"):
        FolderLock.acquire(tmp_path)


def test_file_in_place_of_a_folder_is_named_in_the_error(tmp_path: Path) -> None:
    """`private_folder` raises an error if the folder or its parent is a file."""
    (tmp_path / "file").touch()
    for folder in (tmp_path / "file", tmp_path / "file" / "below"):
        with pytest.raises(StoreError, match="cannot create"):
            private_folder(folder)


@pytest.mark.parametrize("kind", ["nfs", "nfs4", "cifs"])
def test_network_file_system_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str) -> None:
    """A folder on a network file system is refused before a file is written."""
    monkeypatch.setattr(lock, "file_system", lambda _: kind)
    with pytest.raises(StoreError, match=f"network file system \\({kind}\\)"):
        FolderLock.acquire(tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_file_system_type_is_found_by_device_number() -> None:
    """The type is empty if the mount table does not contain the device number."""
    mounts = (
        "36 35 98:0 /mnt1 /mnt2 rw,noatime master:1 - ext3 /dev/sda1 rw\n"
        "40 35 0:52 / /net/a\\040b rw shared:7 - nfs4 server:/export rw,vers=4.2\n"
        "not a line\n"
    )
    assert lock._mounted_type(mounts, "0:52") == "nfs4"
    assert lock._mounted_type(mounts, "98:0") == "ext3"
    assert lock._mounted_type(mounts, "0:99") == ""


def test_local_file_system_is_recognized(tmp_path: Path) -> None:
    """The temporary folder is not on a network file system, and `/proc` has the type `proc`."""
    assert lock.file_system(tmp_path) not in lock.REMOTE
    assert lock.file_system(Path("/proc")) == "proc"
