"""Compaction of a large journal at the start of a root: a snapshot of the agents replaces the entries."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from orch import Config
from orch.supervisor.run_events import read_events
from orch.tree.agents.state import TreeState
from orch.tree.interface.events import CollectReply, KillRequested, ResumeRequested
from orch.tree.journal import journal
from orch.tree.journal.entries import AgentSpawned, RunSnapshot, Snapshot, SteeringQueued
from orch.tree.journal.journal import Journal
from orch.tree.rules.deletions import redacted
from orch_protocol.core.errors import AgentGoneError
from orchestrator.root_double import opened
from orchestrator.tree.rules.test_deletions import Past
from orchestrator.tree_double import Forest
from virtual_clock import virtual

INDEXES = ("names", "alive", "pending", "warm", "holders", "requests", "usage", "processes", "worked", "root_budgets")


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Compact journals of any size."""
    monkeypatch.setattr(journal, "REWRITE_MIN_BYTES", 0)
    monkeypatch.setattr(journal, "REWRITE_MAX_RATIO", 9.0)


def lived() -> Forest:
    """Return a tree of agents with finished turns, children, kills and a resumption."""
    forest = Forest(max_concurrent=99, allow_nested=True)
    for number in range(6):
        id = forest.spawn(name=f"n{number % 3}" if number < 3 else "")
        for turn in range(3):
            forest.ask(id, f"q{turn}-{id}")
            forest.finish(id, f"q{turn}-{id}")
        child = forest.spawn(id)
        forest.handle(KillRequested((child if number % 2 else id,), "the user", {}))
    for node in list(forest.tree.agents):
        if node.running:
            forest.gone(node.spec.id)
    forest.handle(ResumeRequested(next(node.spec.id for node in forest.tree.agents if node.status == "killed")))
    return forest


def same(one: TreeState, other: TreeState) -> None:
    """Check that both states contain the same agents and indexes."""
    assert one.by_id == other.by_id
    assert list(one.by_id) == list(other.by_id)
    for index in INDEXES:
        assert getattr(one, index) == getattr(other, index), index


def written(path: Path, forest: Forest) -> Journal:
    """Return a journal file with the entries of `forest`."""
    book = Journal.open(path)
    for entry in forest.journal:
        book.append([entry])
    return book


def test_snapshot_folds_to_the_same_agents() -> None:
    """The snapshot contains the totals of the run, and later entries apply to it."""
    forest = lived()
    kept = forest.tree.agents.snapshot_entries(1.0)
    again = TreeState(kept)
    same(again, forest.tree.agents)
    found = len(forest.journal)
    ids = list(forest.tree.agents.by_id)
    forest.handle(CollectReply(ids[0], "the user"))
    forest.ask(ids[0], "later")
    for entry in forest.journal[found:]:
        again.apply(entry)
    same(again, forest.tree.agents)


@pytest.mark.usefixtures("small")
def test_event_numbers_continue_after_a_snapshot(tmp_path: Path) -> None:
    """A client that continues after its last number gets each later event once."""
    forest, path = lived(), tmp_path / "journal.jsonl"
    book = written(path, forest)
    events = read_events(path, "r", 0, 10_000)
    assert book.shorten(lambda: forest.tree.agents.snapshot_entries(1.0))
    assert read_events(path, "r", 0, 10_000) == []
    id = next(iter(forest.tree.agents.by_id))
    book.append([SteeringQueued(at=2.0, id=id, steer_id="s", text="go on")])
    assert [event.n for event in read_events(path, "r", events[-1].n, 100)] == [events[-1].n + 1]
    book.close()
    opened = Journal.open(path)
    assert [type(entry) for entry in opened.entries[-2:]] == [RunSnapshot, SteeringQueued]
    assert (len(opened.take_entries()), opened.entries) == (len(forest.tree.agents) + 2, [])
    opened.close()


def test_small_journal_is_not_compacted(tmp_path: Path) -> None:
    """A journal that would remain almost as large is not compacted, either."""
    forest, path = lived(), tmp_path / "journal.jsonl"
    book = written(path, forest)
    before = path.read_bytes()
    assert not book.shorten(lambda: forest.tree.agents.snapshot_entries(1.0))
    journal_large, journal.REWRITE_MIN_BYTES = journal.REWRITE_MIN_BYTES, 0
    try:
        assert not book.shorten(lambda: forest.journal)
    finally:
        journal.REWRITE_MIN_BYTES = journal_large
    book.close()
    assert path.read_bytes() == before


@pytest.mark.usefixtures("small")
def test_damaged_journal_is_not_compacted(tmp_path: Path) -> None:
    """The damaged line stays in the file, so that it can still be repaired."""
    forest, path = lived(), tmp_path / "journal.jsonl"
    written(path, forest).close()
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join([*lines[:5], b"x" + lines[5][1:], *lines[6:]]))
    book = Journal.open(path)
    before = path.read_bytes()
    assert not book.shorten(lambda: forest.tree.agents.snapshot_entries(1.0))
    book.close()
    assert path.read_bytes() == before


@pytest.mark.usefixtures("small")
@pytest.mark.parametrize("call", ["fsync", "replace", "write"])
def test_full_disk_during_compaction_keeps_the_old_journal(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: str
) -> None:
    """The file is unchanged when a step fails, and the journal accepts new entries."""
    forest, path = lived(), tmp_path / "journal.jsonl"
    book = written(path, forest)
    book.sync()
    before = path.read_bytes()

    def full(*_: Any, **__: Any) -> Any:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(os, call, full)
        assert not book.shorten(lambda: forest.tree.agents.snapshot_entries(1.0))
    assert path.read_bytes() == before
    book.append([SteeringQueued(at=2.0, id="x", steer_id="s", text="go on")])
    book.close()


def test_snapshot_contains_nothing_of_deleted_sessions() -> None:
    """Redacting a snapshot removes the holder's task and the answer, and the tree stays the same."""
    past = Past()
    past.turn("q1")
    past.hold("h1")
    kept = past.tree.agents.snapshot_entries(1.0) if not past.tree.agents.pending else []
    assert kept
    past.journal[:] = kept
    past.delete("h1")
    entries = redacted(past.journal)
    assert TreeState(entries).by_id == past.tree.agents.by_id
    found = b"".join(bytes(entry.state) for entry in entries if isinstance(entry, Snapshot))
    assert b"deleted" in found
    again = redacted(entries)
    assert all(one is other for one, other in zip(entries, again, strict=True))


@pytest.mark.usefixtures("small")
@virtual
async def test_compacted_run_has_all_its_agents(tmp_path: Path) -> None:
    """Numbers, names, usage and answers are the same, and killed agents stay killed."""
    config = Config()
    async with opened(tmp_path, run="r", config=config) as world:
        first = await world.scripted("one", "two", name="first")
        assert (await first.query("?")).text == "one"
        gone = await world.scripted("three", name="gone")
        await gone.query("?")
        await gone.kill()
        before = await world.agents(all=True)
    path = tmp_path / "runs" / "r" / "journal.jsonl"
    assert not any(isinstance(entry, Snapshot) for entry in Journal.open(path).entries)
    for text in ("two", None):
        async with opened(tmp_path, run="r", config=config) as world:
            after = await world.agents(all=True)
            assert [(row.seq, row.id, row.name, row.usage.model_calls) for row in after][1:] == [
                (row.seq, row.id, row.name, row.usage.model_calls) for row in before
            ][1:]
            agent = await world.get("first")
            if text is not None:
                assert (await agent.query("?")).text == text
            with pytest.raises(AgentGoneError):
                await (await world.get("gone")).query("?")
    kept = Journal.open(path).entries
    assert isinstance(kept[0], Snapshot)
    assert not any(isinstance(entry, AgentSpawned) for entry in kept)
