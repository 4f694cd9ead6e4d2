"""Reading session files without opening them for writing."""

from __future__ import annotations

from pathlib import Path

import pytest

from orch_protocol.core.errors import ForeignFileError
from orch_protocol.core.messages import user
from orch_worker.session.entry_codec import SESSION_HEADER
from orch_worker.session.log.append_log import AppendLog
from orch_worker.session.session_reader import NAME, read_header
from orch_worker.session.transcript import Transcript


def test_header_is_read_without_the_rest(transcript: Transcript) -> None:
    """`read_header` returns the header of the session."""
    transcript.message(user("x" * 100), "q")
    assert read_header(transcript.path) == transcript.session.header


def test_missing_or_damaged_header_is_none(folder: Path) -> None:
    """`read_header` returns None for a missing file and for a file with a damaged header."""
    assert read_header(folder / NAME) is None
    transcript = Transcript.open(folder, agent="agent", cwd="/")
    transcript.message(user("a"), "q")
    transcript.close()
    data = transcript.path.read_bytes()
    transcript.path.write_bytes(data.replace(b'"cwd":"/"', b'"cwd":"#"', 1))
    assert read_header(transcript.path) is None


def test_header_of_another_file_is_refused(tmp_path: Path) -> None:
    """`read_header` raises ForeignFileError for a file that is not a session."""
    (tmp_path / "other.jsonl").write_text('{"type":"other"}\n')
    with pytest.raises(ForeignFileError):
        read_header(tmp_path / "other.jsonl")


def test_header_without_an_agent_belongs_to_every_agent(folder: Path) -> None:
    """An agent can open a file whose header was lost and replaced by a header without an agent."""
    Transcript.open(folder, agent="agent", cwd="/").close()
    (folder / NAME).unlink()
    AppendLog.open(folder / NAME, header=SESSION_HEADER)[0].close()
    transcript = Transcript.open(folder, agent="agent", cwd="/")
    transcript.message(user("a"), "q")
    assert transcript.repaired == ""
    transcript.close()
