"""Lives to prune, which wait for no disk."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from agent_history import PROFILES, Life
from orch_worker.session.log.append_log import AppendLog


@pytest.fixture
def no_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing waits for a disk."""
    monkeypatch.setattr(AppendLog, "_fdatasync", staticmethod(lambda _: None))
    monkeypatch.setattr(os, "fsync", lambda _: None)


@pytest.fixture
def life(tmp_path: Path) -> Iterator[Life]:
    """An agent that archives every finished turn."""
    life = Life(tmp_path)
    yield life
    life.close()


@pytest.fixture
def long(tmp_path: Path) -> Iterator[Life]:
    """One whose turns have phases and merge into eras."""
    life = Life(tmp_path, PROFILES["tight"])
    yield life
    life.close()
