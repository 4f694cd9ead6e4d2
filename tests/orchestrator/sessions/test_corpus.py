"""Stored runs (tests/corpus/README.md): each can be read, and its agent continues."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from orch import AsyncOrchestrator
from orch.archival.store.session_archives import SessionArchives
from orch.sessions.findings import check_lines, check_session_file
from orch.testing import fake_world
from orch.tree.journal.journal import HEADER
from orch_protocol.core.messages import text_of
from orch_worker.session.log.record_format import seal_lines, unseal_line
from orch_worker.session.session_reader import read_session
from orch_worker.session.transcript import Transcript
from virtual_clock import virtual

CORPUS = Path(__file__).resolve().parents[2] / "corpus"
RUNS = sorted(path.parent for path in CORPUS.glob("*/told.json"))
PLACE = b"/corpus"
"""The home that the journals name. Copies name the home of the test instead."""


@pytest.fixture(params=RUNS, ids=lambda path: path.name)
def home(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """A home with a copy of one of the runs."""
    (tmp_path / "told.json").write_bytes((request.param / "told.json").read_bytes())
    (tmp_path / "project").mkdir()
    (tmp_path / "project" / "note.txt").write_text("port = 4711\n")
    agent = run_content(tmp_path)["agent"]
    run, folder = tmp_path / "runs" / "r", tmp_path / "sessions" / agent
    for each in (run, folder):
        each.mkdir(parents=True, mode=0o700)
    (run / "journal.jsonl").write_bytes(moved((request.param / "journal.jsonl").read_bytes(), tmp_path))
    (folder / "session.jsonl").write_bytes((request.param / "session.jsonl").read_bytes())
    return tmp_path


def moved(data: bytes, home: Path) -> bytes:
    """Return a journal of the corpus with its folder names changed to `home`."""
    lines, checksum = [], 0
    for line in data.splitlines():
        sealed = unseal_line(line)
        assert sealed is not None
        object = sealed.object.replace(PLACE, bytes(home))
        written, _, checksum = seal_lines([object], sealed.seq - 1, checksum, more=sealed.more)
        lines.append(written)
    return b"".join(lines)


def run_content(home: Path) -> dict[str, Any]:
    """Return the expected content of the run."""
    found: dict[str, Any] = json.loads((home / "told.json").read_text())
    return found


def session(home: Path) -> Path:
    """Return the folder of the transcript."""
    return home / "sessions" / str(run_content(home)["agent"])


def test_stored_transcript_reads_as_recorded(home: Path) -> None:
    """Messages, replies and archives equal the expected ones."""
    found, returned = read_session(session(home)), run_content(home)
    assert [[message.role, text_of(message)] for message in found.messages] == returned["shown"]
    assert {turn: reply.text for turn, reply in found.replies.items()} == returned["replies"]
    ledger = SessionArchives(session(home))
    ledger.catch_up()
    archives = {
        id: None if record.deleted else [text_of(message) for message in ledger.read(id)]
        for id, record in ledger.records.items()
    }
    assert archives == returned["archives"]


def test_stored_transcript_is_valid_and_unchanged_by_opening(home: Path) -> None:
    """The lines and the tree of entries have no findings, and opening the transcript changes no byte."""
    path = session(home) / "session.jsonl"
    assert list(check_session_file(path)) == []
    assert list(check_lines(home / "runs" / "r" / "journal.jsonl", HEADER)) == []
    before = path.read_bytes()
    transcript = Transcript.open(session(home), agent=run_content(home)["agent"], cwd="/")
    assert transcript.repaired == ""
    transcript.close()
    assert path.read_bytes() == before


@virtual
async def test_stored_run_opens_and_its_agent_continues(home: Path) -> None:
    """The agent has its id and status, answers the next query, and its archives can be read."""
    found = run_content(home)
    async with AsyncOrchestrator(home=home, env={}, run="r", **fake_world()) as o:
        agent = await o.get(found["name"])
        assert (agent.id, (await agent.state()).status) == (found["agent"], found["status"])
        assert (await agent.query("and?")).text == found["next"]
        for archive, texts in found["archives"].items():
            if texts is not None:
                assert [text_of(message) for message in await o.archives.read(archive)] == texts
    assert len(read_session(session(home)).messages) > len(found["shown"])


def test_corpus_covers_archives_branches_and_deletions() -> None:
    """The listed types of transcript and journal entries occur in the corpus."""
    kinds = {json.loads(line)["type"] for path in CORPUS.glob("*/*.jsonl") for line in path.read_bytes().splitlines()}
    assert kinds >= {"turn_start", "turn_end", "archive", "archive_summary", "checkout", "branch_summary", "label"}
    assert kinds >= {"session_info", "custom_message", "query_finished", "agent_killed", "agent_resumed"}
    assert kinds >= {"turns_archived", "content_deleted"}
