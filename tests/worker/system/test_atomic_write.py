"""Atomic replacement of files: content, permissions and temporary files."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from orch_worker.system.atomic_write import SUFFIX, Sync, atomic_write


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """A file with the mode 0o640."""
    path = tmp_path / "file"
    path.write_bytes(b"old")
    path.chmod(0o640)
    return path


@pytest.mark.parametrize("locked", [False, True])
def test_file_is_replaced_at_the_end_of_the_block(file: Path, locked: bool) -> None:
    """Readers see the old content until the end of the block, and no temporary file remains."""
    with atomic_write(file, locked=locked) as new:
        new.write(b"new")
        new.flush()
        assert file.read_bytes() == b"old"
    assert (file.read_bytes(), stat.S_IMODE(file.stat().st_mode)) == (b"new", 0o600)
    assert os.listdir(file.parent) == [file.name]


@pytest.mark.parametrize("fault", [KeyboardInterrupt, OSError])
def test_error_in_the_block_keeps_the_old_file(file: Path, fault: type[BaseException]) -> None:
    """After an error in the block, no temporary file remains."""

    def write_half() -> None:
        with atomic_write(file) as new:
            new.write(b"ne")
            raise fault

    with pytest.raises(fault):
        write_half()
    assert file.read_bytes() == b"old"
    assert os.listdir(file.parent) == [file.name]


@pytest.mark.parametrize(
    ("sync", "expected"),
    [("all", ["content", "name", "folder"]), ("content", ["content", "name"]), ("none", ["name"])],
)
@pytest.mark.parametrize("in_folder", [False, True])
def test_each_durability_mode_syncs_content_before_the_name(
    file: Path, monkeypatch: pytest.MonkeyPatch, sync: Sync, expected: list[str], in_folder: bool
) -> None:
    """Mode `all` syncs content and folder, mode `content` syncs the content, and mode `none` syncs nothing."""
    steps: list[str] = []
    fsync, replace = os.fsync, os.replace

    def on_fsync(descriptor: int) -> None:
        steps.append("folder" if stat.S_ISDIR(os.fstat(descriptor).st_mode) else "content")
        fsync(descriptor)

    def on_replace(old: Path, new: Path, **folders: int | None) -> None:
        steps.append("name")
        replace(old, new, **folders)

    monkeypatch.setattr(os, "fsync", on_fsync)
    monkeypatch.setattr(os, "replace", on_replace)
    folder = os.open(file.parent, os.O_RDONLY | os.O_DIRECTORY) if in_folder else None
    with atomic_write(file, sync=sync, folder=folder) as new:
        new.write(b"new")
    if folder is not None:
        os.close(folder)
    assert steps == expected
    assert file.read_bytes() == b"new"


def test_default_permissions_follow_the_umask(file: Path) -> None:
    """With `mode=None`, the file has the same permissions as any new file."""
    umask = os.umask(0o027)
    try:
        with atomic_write(file, mode=None):
            pass
    finally:
        os.umask(umask)
    assert stat.S_IMODE(file.stat().st_mode) == 0o640


def test_explicit_mode_ignores_the_umask(file: Path) -> None:
    """A file that is written with the mode 0o777 has exactly this mode."""
    with atomic_write(file, mode=0o777):
        pass
    assert stat.S_IMODE(file.stat().st_mode) == 0o777


def test_locked_write_removes_a_leftover_temporary_file(file: Path) -> None:
    """A link at the temporary path is removed, and its target is not written."""
    other = file.with_name("other")
    other.write_bytes(b"other")
    file.with_name(file.name + SUFFIX).symlink_to(other)
    with atomic_write(file, locked=True) as new:
        new.write(b"new")
    assert (file.read_bytes(), other.read_bytes()) == (b"new", b"other")
    assert sorted(os.listdir(file.parent)) == [file.name, other.name]


def test_write_into_an_open_folder_survives_its_replacement(tmp_path: Path) -> None:
    """The file is created in the opened folder, even if another folder has the path now."""
    (tmp_path / "mine").mkdir()
    folder = os.open(tmp_path / "mine", os.O_RDONLY | os.O_DIRECTORY)
    (tmp_path / "mine").rename(tmp_path / "moved")
    (tmp_path / "mine").mkdir()
    with atomic_write(tmp_path / "mine" / "file", folder=folder) as new:
        new.write(b"new")
    os.close(folder)
    assert (os.listdir(tmp_path / "mine"), os.listdir(tmp_path / "moved")) == ([], ["file"])


def test_errors_name_the_target_not_the_temporary_file(tmp_path: Path) -> None:
    """The error contains the path that the caller passed."""
    missing = tmp_path / "missing" / "file"
    with pytest.raises(FileNotFoundError) as caught, atomic_write(missing):
        pass
    assert caught.value.filename == str(missing)
