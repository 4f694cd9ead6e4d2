"""Fixtures: new logs and transcripts for tests of files."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from append_logs import HEADER
from orch_worker.session.log.append_log import AppendLog
from orch_worker.session.transcript import Transcript


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """The path of a log file."""
    return tmp_path / "log.jsonl"


@pytest.fixture
def log(path: Path) -> Iterator[AppendLog]:
    """A new, open log."""
    log, _ = AppendLog.open(path, header=HEADER)
    yield log
    log.close()


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """The path of a session folder."""
    return tmp_path / "sessions" / "agent"


@pytest.fixture
def transcript(folder: Path) -> Iterator[Transcript]:
    """A new, open transcript."""
    transcript = Transcript.open(folder, agent="agent", cwd="/somewhere")
    yield transcript
    transcript.close()
