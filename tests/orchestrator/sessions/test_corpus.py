"""Runs that earlier versions of orch wrote, a folder each below `tests/corpus`, stay what they are: read, gone on with.

`told.json` beside a journal and a transcript has what they say. None of them is written anew, ever: a new shape of the
files is a new folder.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from orch import AsyncOrchestrator
from orch.archival.store.session_archives import SessionArchives
from orch.sessions.findings import in_lines, in_session
from orch.testing import fake_world
from orch.tree.journal.journal import HEADER
from orch_protocol.core.messages import text_of
from orch_worker.session.log.record_format import seal_lines, unseal_line
from orch_worker.session.transcript import Transcript, read_session
from virtual_clock import virtual

CORPUS = Path(__file__).resolve().parents[2] / "corpus"
RUNS = sorted(path.parent for path in CORPUS.glob("*/told.json"))
PLACE = b"/corpus"
"""Where they were written, which is nowhere; a copy says where it is instead."""


@pytest.fixture(params=RUNS, ids=lambda path: path.name)
def home(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """A home with a copy of one of the runs."""
    (tmp_path / "told.json").write_bytes((request.param / "told.json").read_bytes())
    (tmp_path / "project").mkdir()
    (tmp_path / "project" / "note.txt").write_text("port = 4711\n")
    agent = told(tmp_path)["agent"]
    run, folder = tmp_path / "runs" / "r", tmp_path / "sessions" / agent
    for each in (run, folder):
        each.mkdir(parents=True, mode=0o700)
    (run / "journal.jsonl").write_bytes(moved((request.param / "journal.jsonl").read_bytes(), tmp_path))
    (folder / "session.jsonl").write_bytes((request.param / "session.jsonl").read_bytes())
    return tmp_path


def moved(data: bytes, home: Path) -> bytes:
    """Return a journal, which names folders, as it would be had it been written at `home`."""
    lines, checksum = [], 0
    for line in data.splitlines():
        sealed = unseal_line(line)
        assert sealed is not None
        object = sealed.object.replace(PLACE, bytes(home))
        written, _, checksum = seal_lines([object], sealed.seq - 1, checksum, more=sealed.more)
        lines.append(written)
    return b"".join(lines)


def told(home: Path) -> dict[str, Any]:
    """Return what the run says."""
    found: dict[str, Any] = json.loads((home / "told.json").read_text())
    return found


def session(home: Path) -> Path:
    """Return the folder of the transcript."""
    return home / "sessions" / str(told(home)["agent"])


def test_a_transcript_says_what_it_said(home: Path) -> None:
    """What the model is shown, what each query came to, and what was archived."""
    found, said = read_session(session(home)), told(home)
    assert [[message.role, text_of(message)] for message in found.messages] == said["shown"]
    assert {turn: reply.text for turn, reply in found.replies.items()} == said["replies"]
    ledger = SessionArchives(session(home))
    ledger.catch_up()
    archives = {
        id: None if record.deleted else [text_of(message) for message in ledger.read(id)]
        for id, record in ledger.records.items()
    }
    assert archives == said["archives"]


def test_nothing_is_wrong_with_it(home: Path) -> None:
    """Neither with its lines nor with its tree; and opening it leaves each byte as it is."""
    path = session(home) / "session.jsonl"
    assert list(in_session(path)) == []
    assert list(in_lines(home / "runs" / "r" / "journal.jsonl", HEADER)) == []
    before = path.read_bytes()
    transcript = Transcript.open(session(home), agent=told(home)["agent"], cwd="/")
    assert transcript.repaired == ""
    transcript.close()
    assert path.read_bytes() == before


@virtual
async def test_its_agent_goes_on(home: Path) -> None:
    """The run is opened, its agent is who it was, and answers what its script has next."""
    said = told(home)
    async with AsyncOrchestrator(home=home, env={}, run="r", **fake_world()) as o:
        agent = await o.get(said["name"])
        assert (agent.id, (await agent.state()).status) == (said["agent"], said["status"])
        assert (await agent.query("and?")).text == said["next"]
        for archive, texts in said["archives"].items():
            if texts is not None:
                assert [text_of(message) for message in await o.archives.read(archive)] == texts
    assert len(read_session(session(home)).messages) > len(said["shown"])


def test_each_shape_that_ever_was_is_there() -> None:
    """Of entries in a journal and in a transcript."""
    kinds = {json.loads(line)["type"] for path in CORPUS.glob("*/*.jsonl") for line in path.read_bytes().splitlines()}
    assert kinds >= {"turn_start", "turn_end", "archive", "archive_summary", "checkout", "branch_summary", "label"}
    assert kinds >= {"session_info", "custom_message", "opened", "answered", "killed", "resumed", "archived", "pruned"}
