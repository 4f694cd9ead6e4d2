"""Small records: whole at any moment, and there after a loss of power where that matters."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from orch_protocol.core.errors import StoreError
from orch_protocol.core.taint import TaintLabel
from orch_worker.hooks.builtin.usage_log import DailyUsage, UsageLog
from orch_worker.policy.taint import remember_file_taint
from orch_worker.system import atomic_json


@pytest.fixture
def steps(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What is done to files that decides what a loss of power leaves, in order."""
    done: list[str] = []
    sync, replace = os.fsync, os.replace

    def fsync(descriptor: int) -> None:
        done.append("folder" if stat.S_ISDIR(os.fstat(descriptor).st_mode) else "content")
        sync(descriptor)

    def rename(old: Path, new: Path) -> None:
        done.append("name")
        replace(old, new)

    monkeypatch.setattr(os, "fsync", fsync)
    monkeypatch.setattr(os, "replace", rename)
    return done


def test_what_somebody_decided_survives_a_loss_of_power(tmp_path: Path, steps: list[str]) -> None:
    """The content is on the disk before the name leads to it, and the name before anybody is told."""
    atomic_json.change_json(tmp_path / "trusted.json", dict[str, str], {}, "", lambda _: {"a": "b"})
    assert steps == ["content", "name", "folder"]


def test_what_binds_agents_survives_a_loss_of_power(tmp_path: Path, steps: list[str]) -> None:
    """A file that holds what strangers wrote is known to."""
    remember_file_taint(tmp_path / "written.json", [str(tmp_path / "a")], [TaintLabel("untrusted")], whole=True)
    assert steps == ["content", "name", "folder"]


def test_figures_wait_for_no_disk(tmp_path: Path, steps: list[str]) -> None:
    """Sums that each turn adds to are whole, old or new."""
    UsageLog(tmp_path / "ledger.json").add("2026-01-31", DailyUsage())
    assert steps == ["name"]


def test_what_does_not_reach_the_disk_changes_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The old record stays, and nothing is left beside it."""
    file = tmp_path / "trusted.json"
    atomic_json.write(file, {"old": "1"})

    def refused(_: int) -> None:
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(os, "fsync", refused)
    with pytest.raises(StoreError, match="input/output error"):
        atomic_json.write(file, {"new": "2"})
    assert file.read_bytes() == b'{"old":"1"}'
    assert os.listdir(tmp_path) == [file.name]
