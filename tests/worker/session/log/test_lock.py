"""A folder has one owner."""

from __future__ import annotations

import errno
import fcntl
import os
from pathlib import Path

import pytest

from orch_protocol.core.errors import LockedError, StoreError
from orch_worker.session.log import lock
from orch_worker.session.log.lock import FolderLock, private_folder


def test_second_owner_is_told_who_the_first_is(tmp_path: Path) -> None:
    """A taken folder is refused at once, naming folder and process; released, it is free."""
    owner = FolderLock.acquire(tmp_path)
    with pytest.raises(LockedError, match=f"{tmp_path} is in use by process {os.getpid()}:"):
        FolderLock.acquire(tmp_path)
    owner.release()
    owner.release()
    FolderLock.acquire(tmp_path).release()


def test_an_owner_knows_when_the_folder_is_no_longer_its_own(tmp_path: Path) -> None:
    """Removed, replaced by another lock, or with a file in its place: each is noticed."""
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


def test_refusal_leaks_no_descriptor(tmp_path: Path) -> None:
    """Asking in vain leaves no descriptor behind."""
    owner = FolderLock.acquire(tmp_path)
    before = len(os.listdir("/proc/self/fd"))
    for _ in range(5):
        with pytest.raises(LockedError):
            FolderLock.acquire(tmp_path)
    assert len(os.listdir("/proc/self/fd")) == before
    owner.release()


def test_stale_owner_does_not_matter(tmp_path: Path) -> None:
    """What a dead owner left in the lock file keeps nobody out, and is overwritten."""
    (tmp_path / "lock").write_text("12345678901234567890\nnonsense")
    owner = FolderLock.acquire(tmp_path)
    assert (tmp_path / "lock").read_text() == f"{os.getpid()}\n"
    owner.release()


def test_lock_does_not_pass_through_exec(tmp_path: Path) -> None:
    """The lock file is private, and its descriptor closed in programs that the owner starts."""
    owner = FolderLock.acquire(tmp_path)
    assert fcntl.fcntl(owner._descriptor, fcntl.F_GETFD) & fcntl.FD_CLOEXEC
    assert (tmp_path / "lock").stat().st_mode & 0o777 == 0o600
    owner.release()


def test_missing_folders_are_made_private(tmp_path: Path) -> None:
    """Each folder that had to be made has mode 0700."""
    folder = tmp_path / "a" / "b" / "c"
    FolderLock.acquire(folder).release()
    for made in (folder, folder.parent, folder.parent.parent):
        assert made.stat().st_mode & 0o777 == 0o700


@pytest.mark.parametrize(("error", "words"), [(errno.EROFS, "read-only"), (errno.EACCES, "is it read-only")])
def test_read_only_folder_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: int, words: str) -> None:
    """Where no file can be made, the error says so."""

    def refuse(*_: object) -> int:
        raise OSError(error, os.strerror(error))

    monkeypatch.setattr(os, "open", refuse)
    with pytest.raises(StoreError, match=f"cannot open {tmp_path}/lock: .*{words}"):
        FolderLock.acquire(tmp_path)


def test_file_in_the_way_is_named(tmp_path: Path) -> None:
    """A folder cannot be made where a file is."""
    (tmp_path / "file").touch()
    for folder in (tmp_path / "file", tmp_path / "file" / "below"):
        with pytest.raises(StoreError, match="cannot create"):
            private_folder(folder)


@pytest.mark.parametrize("kind", ["nfs", "nfs4", "cifs"])
def test_network_file_system_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str) -> None:
    """A folder whose locks another machine would not see is refused before anything is written in it."""
    monkeypatch.setattr(lock, "file_system", lambda _: kind)
    with pytest.raises(StoreError, match=f"network file system \\({kind}\\)"):
        FolderLock.acquire(tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_file_system_is_found_by_device() -> None:
    """The mount table's line with the folder's device names the type; without one it is unknown."""
    mounts = (
        "36 35 98:0 /mnt1 /mnt2 rw,noatime master:1 - ext3 /dev/sda1 rw\n"
        "40 35 0:52 / /net/a\\040b rw shared:7 - nfs4 server:/export rw,vers=4.2\n"
        "not a line\n"
    )
    assert lock._mounted_type(mounts, "0:52") == "nfs4"
    assert lock._mounted_type(mounts, "98:0") == "ext3"
    assert lock._mounted_type(mounts, "0:99") == ""


def test_local_file_system_is_found(tmp_path: Path) -> None:
    """The folder of a test is on no network file system."""
    assert lock.file_system(tmp_path) not in lock.REMOTE
    assert lock.file_system(Path("/proc")) == "proc"
