"""Small JSON records: atomic replacement, and durability for the records that need it."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from orch_protocol.core.errors import StoreError
from orch_protocol.core.taint import TaintLabel
from orch_worker.hooks.builtin.cost_tracker import add_spending
from orch_worker.policy.taint import remember_file_taint
from orch_worker.system import atomic_json


@pytest.fixture
def steps(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The syncs and renames that are made, in order."""
    done: list[str] = []
    sync, replace = os.fsync, os.replace

    def fsync(descriptor: int) -> None:
        done.append("folder" if stat.S_ISDIR(os.fstat(descriptor).st_mode) else "content")
        sync(descriptor)

    def rename(old: Path, new: Path, **folders: int | None) -> None:
        done.append("name")
        replace(old, new, **folders)

    monkeypatch.setattr(os, "fsync", fsync)
    monkeypatch.setattr(os, "replace", rename)
    return done


def test_user_decisions_are_synced_before_they_are_acknowledged(tmp_path: Path, steps: list[str]) -> None:
    """The content of a changed record is synced before the rename, and its folder afterwards."""
    atomic_json.change_json(tmp_path / "trusted.json", dict[str, str], {}, "", lambda _: {"a": "b"})
    assert steps == ["content", "name", "folder"]


def test_taint_records_are_synced_to_disk(tmp_path: Path, steps: list[str]) -> None:
    """The record is synced so that a loss of power does not remove the label of an untrusted file."""
    remember_file_taint(
        tmp_path / "written.json", [str(tmp_path / "a")], [TaintLabel("untrusted")], replace_labels=True
    )
    assert steps == ["content", "name", "folder"]


def test_usage_figures_are_not_synced(tmp_path: Path, steps: list[str]) -> None:
    """Figures of costs are replaced atomically without a sync."""
    add_spending(tmp_path / "spending.json", "2026-01-31", 0.5)
    assert steps == ["name"]


def test_failed_write_keeps_the_old_record(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A failed write raises a StoreError and leaves no temporary file."""
    file = tmp_path / "trusted.json"
    atomic_json.write(file, {"old": "1"})

    def refused(_: int) -> None:
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(os, "fsync", refused)
    with pytest.raises(StoreError, match="input/output error"):
        atomic_json.write(file, {"new": "2"})
    assert file.read_bytes() == b'{"old":"1"}'
    assert os.listdir(tmp_path) == [file.name]
