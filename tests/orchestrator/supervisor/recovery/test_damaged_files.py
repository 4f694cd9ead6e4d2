"""A journal and a transcript in which lines were lost, repeated, moved or altered, with and without a checksum that
says so: what can be read of them is, and everything goes on."""

from __future__ import annotations

import contextlib
import json
import shutil
from pathlib import Path

import pytest

from agent_history import PROFILES, Life, steps
from damaged_lines import spoilt
from orch.tree.journal.events import Recover, RetireIdleAgents, StartQuery
from orch.tree.journal.journal import Journal
from orch.tree.tree import Tree
from orch_protocol.core.errors import DamagedError, OrchError
from orch_protocol.core.messages import assistant
from orch_worker.session.transcript import Transcript, read_last_turn, read_session, read_usage
from orchestrator.root_double import World, nesting

JOURNALS = 400
TRANSCRIPTS = 60
KID = {"tool": "spawn_subagent", "input": {"task": "x", "name": "kid"}}


@pytest.fixture
async def journal(tmp_path: Path) -> bytes:
    """A journal of some agents that were asked, steered, killed, resumed and had children."""
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
    """Let a root take over what the journal holds, ask every agent, and return how many can be asked."""
    tree.apply(tree.decide(Recover(1), 1.0).entries)
    tree.apply(tree.decide(RetireIdleAgents(), 2.0).entries)
    asked = 0
    for number, id in enumerate(list(tree.agents.by_id)):
        try:
            tree.apply(tree.decide(StartQuery(id, f"q{number}", "?"), 3.0).entries)
            asked += 1
        except OrchError:
            continue  # killed, by what is left of it; or no room
    return asked


async def test_a_journal_that_was_spoilt_is_opened(journal: bytes, tmp_path: Path) -> None:
    """Whatever was done to its lines below the first: the run opens, and agents of it can be asked."""
    asked = 0
    for seed in range(JOURNALS):
        folder = tmp_path / str(seed)
        folder.mkdir()
        (folder / "journal.jsonl").write_bytes(spoilt(journal, seed))
        opened = Journal.open(folder / "journal.jsonl")
        asked += answered(Tree(nesting().subagents, opened.entries)) > 0
        opened.close()
    assert asked > JOURNALS * 0.8


def test_a_transcript_that_was_spoilt_is_opened_and_goes_on(tmp_path: Path) -> None:
    """It is read from both ends, opened and appended to; what comes then is archived; archives are whole or say not."""
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
