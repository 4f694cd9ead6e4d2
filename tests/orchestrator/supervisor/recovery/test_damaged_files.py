"""Journals and transcripts with lost, repeated, moved or changed lines. Readable parts are used, and agents
continue."""

from __future__ import annotations

import contextlib
import json
import shutil
from pathlib import Path

import pytest

from agent_history import PROFILES, Life, steps
from damaged_lines import spoilt
from orch.tree.interface.events import Recover, RetireIdleAgents, StartQuery
from orch.tree.journal.journal import Journal
from orch.tree.tree import Tree
from orch_protocol.core.errors import DamagedError, OrchError
from orch_protocol.core.messages import assistant
from orch_worker.session.session_reader import read_last_turn, read_session, read_usage
from orch_worker.session.transcript import Transcript
from orchestrator.root_double import World, nesting

JOURNALS = 400
TRANSCRIPTS = 60
KID = {"tool": "spawn_subagent", "input": {"task": "x", "name": "kid"}}


@pytest.fixture
async def journal(tmp_path: Path) -> bytes:
    """A journal of agents that were queried, steered, killed and resumed, and that had children."""
    async with World(tmp_path / "home", run="r", config=nesting(max_concurrent=4)) as world:
        one = await world.scripted("one", "two", "three", name="one")
        two = await world.scripted(items=[KID, "done", "more"], tools=["spawn_subagent"], name="two")
        await one.query("x")
        one.submit("y")
        await one.collect(timeout=5)
        await two.query("go")
        await one.steer("hm")
        await two.kill()
        await two.resume()
        await two.query("z")
    return (tmp_path / "home" / "runs" / "r" / "journal.jsonl").read_bytes()


def answered(tree: Tree) -> int:
    """Recover the tree, query every agent, and return how many queries were accepted."""
    tree.apply(tree.decide(Recover(1), 1.0).entries)
    tree.apply(tree.decide(RetireIdleAgents(), 2.0).entries)
    asked = 0
    for number, id in enumerate(list(tree.agents.by_id)):
        try:
            tree.apply(tree.decide(StartQuery(id, f"q{number}", "?"), 3.0).entries)
            asked += 1
        except OrchError:
            continue  # killed according to the remaining entries, or no free slot
    return asked


async def test_damaged_journal_is_opened(journal: bytes, tmp_path: Path) -> None:
    """In most runs with damage, at least one agent accepts a query."""
    asked = 0
    for seed in range(JOURNALS):
        folder = tmp_path / str(seed)
        folder.mkdir()
        (folder / "journal.jsonl").write_bytes(spoilt(journal, seed))
        opened = Journal.open(folder / "journal.jsonl")
        asked += answered(Tree(nesting().subagents, opened.entries)) > 0
        opened.close()
    assert asked > JOURNALS * 0.8


def test_damaged_transcript_is_opened_and_continued(tmp_path: Path) -> None:
    """New turns are archived. Each archive is complete or raises DamagedError."""
    life = Life(tmp_path / "agent", PROFILES["tight"])
    for turn in range(1, 5):
        life.work(turn, 3)
    life.close()
    data = (tmp_path / "agent" / "session.jsonl").read_bytes()
    agent = json.loads(data.split(b"\n")[0])["agent"]
    for seed in range(TRANSCRIPTS):
        folder = tmp_path / str(seed)
        folder.mkdir()
        (folder / "session.jsonl").write_bytes(spoilt(data, seed))
        before = read_session(folder)
        read_last_turn(folder), read_usage(folder, "q1")
        transcript = Transcript.open(folder, agent=agent, cwd="/")
        assert len(transcript.session.messages) == len(before.messages)
        transcript.message(assistant("more"), "q9")
        transcript.close()
        again = Life(folder, PROFILES["tight"])
        again.begin("again")
        again.say(*steps(3, "z", 60), assistant("ok"))
        again.end()
        assert again.archive()
        for record in again.records():
            with contextlib.suppress(DamagedError):
                again.read(record.id)
        again.close()
        shutil.rmtree(folder)
