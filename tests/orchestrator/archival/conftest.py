"""Fixtures: agents with archives, and a disk that needs no waiting."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from agent_history import PROFILES, Life
from orch_worker.session.log.append_log import AppendLog


@pytest.fixture
def no_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    """Replace the calls that wait for the disk."""
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
    """An agent whose long turns are archived in phases and whose records merge into eras."""
    life = Life(tmp_path, PROFILES["tight"])
    yield life
    life.close()
