"""The deletion of archives in the tree and in the journal of a root."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path
from typing import Any

import msgspec
import pytest

from orch.processes.session_holds import SessionHolds
from orch.services.archives.prune import parse_age
from orch.tree.agents.state import TreeState
from orch.tree.interface.events import (
    AddHolder,
    ConfirmSteering,
    FinishQuery,
    QueueSteering,
    RecordArchives,
    RecordDeletion,
    ResumeRequested,
    StartQuery,
    StopIfIdle,
)
from orch.tree.interface.topics import QueryTopic, ReadyTopic
from orch.tree.journal.entries import (
    AgentSpawned,
    ContentDeleted,
    Entry,
    QueryFinished,
    QueryStarted,
    RunStarted,
    TranscriptRewritten,
)
from orch.tree.journal.journal import Journal
from orch.tree.rules.deletions import redacted
from orch_protocol.core.archives import ArchiveSource
from orch_protocol.core.errors import ArchiveDeletedError, ConfigError, StoreError
from orch_protocol.core.messages import Image, Reply
from orch_protocol.session.entries import TranscriptPosition
from orch_worker.session.log.append_log import AppendLog
from orchestrator.root_double import fill
from orchestrator.tree_double import Forest, Launch, Notify, Signal
from virtual_clock import virtual

WHEN = "2026-11-21T10:20:30.400Z"
SECRET = "the secret"


class Past(Forest):
    """An agent with a queried archive. `SECRET` is part of every text."""

    def __init__(self, *, warm: bool = True) -> None:
        super().__init__()
        self.agent = self.spawn()
        self.turn("q1")
        self.handle(RecordArchives(self.agent, (("h1", SECRET), ("h2", "other"))))
        self.hold("h1")
        self.hold("h2")
        if warm:
            self.turn("q2", "h1")

    def hold(self, id: str, *, at: int = 0) -> None:
        """Add a holder for the archive, or update the location of its lines."""
        source = ArchiveSource("/nowhere", self.agent, "turn", SECRET, ((at, 10),), "hash")
        spec = self.spec(id=id, kind="holder", name=id, task=SECRET, source=source, parent_id=self.agent)
        self.handle(AddHolder(spec))

    def turn(self, query_id: str, id: str | None = None) -> None:
        """Let the agent `id` answer a query with a steering message. The default is the agent with the archive."""
        id = id or self.agent
        self.handle(StartQuery(id, query_id, SECRET))
        if self.status(id) == "starting":
            self.up(id)
        self.handle(QueueSteering(id, f"s-{query_id}", SECRET))
        self.handle(ConfirmSteering(id, f"s-{query_id}"))
        self.handle(FinishQuery(id, query_id, Reply(id, query_id, SECRET, files_changed=(SECRET,))))

    def delete(self, *holders: str, turns: tuple[str, ...] = ("q1",)) -> None:
        self.handle(RecordDeletion(self.agent, dict.fromkeys(holders, WHEN), dict.fromkeys(turns, WHEN)))


def with_secret(entries: list[Entry]) -> list[Entry]:
    """Return the entries that contain the secret."""
    return [entry for entry in entries if SECRET in str(entry)]


def test_deletion_removes_turns_and_questions_from_the_journal() -> None:
    """The redacted journal results in the same tree."""
    past = Past()
    assert len(with_secret(past.journal)) == 9
    past.delete("h1")
    after = redacted(past.journal)
    assert [type(entry) for entry in after] == [type(entry) for entry in past.journal]
    assert with_secret(after) == [
        entry for entry in past.journal if isinstance(entry, AgentSpawned) and entry.id == "h2"
    ]
    tree = Forest()
    tree.tree.apply(after)
    assert tree.tree.agents.by_id == past.tree.agents.by_id
    assert tree.tree.agents.names == past.tree.agents.names


def test_prompt_and_images_of_an_ended_query_are_removed() -> None:
    """Redaction keeps the prompt and images of a running query, because the next root may send them again."""
    past = Past()
    past.handle(StartQuery(past.agent, "q9", "?", prompt=SECRET, images=(Image("image/png", SECRET),)))
    assert redacted(past.journal)[-1] is past.journal[-1]
    past.handle(FinishQuery(past.agent, "q9", Reply(past.agent, "q9", "done")))
    asked = [entry for entry in redacted(past.journal) if isinstance(entry, QueryStarted)][-1]
    assert (asked.query_id, asked.head, asked.prompt, asked.images) == ("q9", "?", "", ())


def test_transcript_rewrite_is_pending_until_its_new_position_is_recorded() -> None:
    """A compacted journal contains the pending rewrite, too. A rewrite that ends late does not replace a newer
    position."""
    past, old, new, newer = Past(), *(TranscriptPosition(seq, 7) for seq in (5, 6, 8))
    past.write([TranscriptRewritten(at=1.0, id=past.agent, before=old)])
    past.write([TranscriptRewritten(at=2.0, id=past.agent, before=new)])  # the first rewrite is still unfinished
    for entries in (past.journal, past.tree.agents.snapshot_entries(2.0)):
        assert TreeState(entries).rewriting == {past.agent: old}
        assert TreeState(entries)[past.agent].transcript is None
    past.write([TranscriptRewritten(at=3.0, id=past.agent, transcript=new)])
    assert (past.tree.agents.rewriting, past.tree.agents[past.agent].transcript) == ({}, new)
    past.write([TranscriptRewritten(at=4.0, id=past.agent, before=new)])
    past.turn("q9")
    past.write([QueryFinished(at=5.0, id=past.agent, query_id="q9", transcript=newer)])
    past.write([TranscriptRewritten(at=6.0, id=past.agent, transcript=new)])
    assert (past.tree.agents.rewriting, past.tree.agents[past.agent].transcript) == ({}, newer)


def test_other_entries_are_unchanged_by_a_deletion() -> None:
    """An unchanged entry is the same object, and a second redaction changes nothing."""
    past = Past()
    past.turn("q3")
    assert all(one is two for one, two in zip(past.journal, redacted(past.journal), strict=True))
    past.delete("h1")
    once = redacted(past.journal)
    [kept] = [entry for entry in once if isinstance(entry, QueryFinished) and entry.query_id == "q3"]
    assert kept.reply is not None
    assert kept.reply.text == SECRET
    assert all(one is two for one, two in zip(once, redacted(once), strict=True))


@pytest.mark.parametrize("shortened", [False, True])
def test_prompt_is_dropped_when_its_query_is_over(shortened: bool) -> None:
    """While the query is pending, the journal keeps the prompt. Afterwards, the transcript contains it."""
    past = Past()
    past.ask(past.agent, "q3", stays=True, prompt="all of it")
    if shortened:
        past.journal = past.tree.agents.snapshot_entries(past.now)
    assert b"all of it" in msgspec.json.encode(redacted(past.journal))
    past.finish(past.agent, "q3")
    after = redacted(past.journal)
    assert b"all of it" not in msgspec.json.encode(after)
    tree = Forest()
    tree.tree.apply(after)
    assert tree.tree.agents.by_id == past.tree.agents.by_id


def test_latest_location_of_a_holders_archive_is_kept() -> None:
    """Earlier locations may contain text of deleted archives."""
    past = Past()
    past.hold("h2", at=99)
    past.hold("h2", at=7)
    past.hold("h2", at=7)
    places = [entry.source.spans for entry in redacted(past.journal) if getattr(entry, "source", None)]
    assert places == [((7, 10),)]
    tree = Forest()
    tree.tree.apply(redacted(past.journal))
    assert tree.tree.agents.by_id == past.tree.agents.by_id


def test_deleted_holder_cannot_be_asked_or_resumed() -> None:
    """The holder has the status `killed`, and the error contains the deletion date."""
    past = Past()
    past.delete("h1")
    assert (past.status("h1"), past.status("h2")) == ("killed", "cold")
    for asked in (StartQuery("h1", "q9", "hi"), QueueSteering("h1", "s9", "hi"), ResumeRequested("h1")):
        with pytest.raises(ArchiveDeletedError, match="h1 was deleted on 2026-11-21"):
            past.handle(asked)
    assert past.refold().agents.by_id == past.tree.agents.by_id


def test_query_to_a_holder_being_deleted_fails() -> None:
    """The holder's starting process is killed, and the error says that the archive was deleted."""
    past = Past(warm=False)
    past.ask("h1", "q9")
    assert past.told(Launch)
    past.delete("h1")
    notified = {notify.topic: notify for notify in past.told(Notify)}
    assert notified.keys() == {ReadyTopic("h1"), QueryTopic("q9")}
    assert notified[QueryTopic("q9")].error.type == "ArchiveDeletedError"
    assert past.told(Signal) == [Signal("h1", 1, "kill")]
    past.gone("h1")
    assert past.status("h1") == "killed"
    assert past.tree.agents["h1"].deleted == WHEN
    assert past.refold().agents.by_id == past.tree.agents.by_id


def test_deletion_is_recorded_once() -> None:
    """A second deletion writes no entry or only the new holders and turns."""
    past = Past()
    past.handle(RecordArchives(past.agent, (("h3", "third"),)))
    past.delete("h1", "h3")
    before = len(past.journal)
    past.delete("h1", "h3")
    assert len(past.journal) == before
    past.delete("h1", "h2", "h3", turns=("q1", "q5"))
    [entry] = past.journal[before:]
    assert isinstance(entry, ContentDeleted)
    assert (entry.holders, entry.turns) == ({"h2": WHEN}, {"q5": WHEN})


def test_collectable_answer_of_a_deleted_turn_is_deleted() -> None:
    """The text of the stored reply is replaced by the deletion date."""
    past = Past()
    past.delete("h1")
    last = past.tree.agents[past.agent].last
    assert last is not None
    assert last.reply is not None
    assert (last.reply.text, last.reply.files_changed) == ("[deleted on 2026-11-21]", ())


@pytest.mark.parametrize(("status", "rests"), [("idle", True), ("busy", False), ("starting", False), ("cold", False)])
def test_stop_if_idle_stops_idle_agents_only(status: str, rests: bool) -> None:
    """An idle agent is stopped once."""
    forest = Forest()
    id = forest.spawn(up=status != "starting")
    if status == "busy":
        forest.ask(id)
    if status == "cold":
        forest.handle(StopIfIdle(id))
        forest.gone(id, 0)
    assert forest.status(id) == status
    forest.handle(StopIfIdle(id))
    assert forest.told(Signal) == ([Signal(id, 1, "stop")] if rests else [])
    forest.handle(StopIfIdle(id))
    assert forest.told(Signal) == []


# The journal file.


def journal(path: Path, *entries: Entry) -> Journal:
    opened = Journal.open(path)
    opened.append(list(entries))
    return opened


def silenced(entries: Any) -> list[Entry]:
    return [msgspec.structs.replace(entry, pid=0) if isinstance(entry, RunStarted) else entry for entry in entries]


def test_rewritten_journal_keeps_damaged_and_unknown_lines(tmp_path: Path) -> None:
    """Later entries are appended to the new file."""
    path = tmp_path / "journal.jsonl"
    book = journal(path, *(RunStarted(at=1.0, pid=number) for number in (4711, 4712, 4713)))
    book.log.append(b'{"type":"of_a_later_version","secret":4711}')
    book.sync()
    path.write_bytes(path.read_bytes().replace(b'"pid":4712', b'"pid":9999'))
    dirty: list[int] = []
    book.log.on_dirty = lambda: dirty.append(1)
    book.rewrite(silenced)
    assert path.read_bytes().count(b'"pid":0') == 2
    assert path.read_bytes().count(b'"pid":9999') == 1
    assert b"of_a_later_version" in path.read_bytes()
    book.append([RunStarted(at=2.0, pid=5)])
    assert dirty == [1]
    book.close()
    again = Journal.open(path)
    assert [entry.pid for entry in again.entries if isinstance(entry, RunStarted)] == [0, 0, 5]
    assert len(again.notes) == 2
    again.close()


def test_journal_without_changes_is_not_rewritten(tmp_path: Path) -> None:
    """The file keeps its inode."""
    path = tmp_path / "journal.jsonl"
    book = journal(path, RunStarted(at=1.0, pid=1))
    before = path.stat().st_ino
    book.rewrite(list)
    assert path.stat().st_ino == before
    book.close()


def test_full_disk_during_a_rewrite_keeps_the_journal(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The rewrite raises StoreError, and the journal accepts new entries."""
    path = tmp_path / "journal.jsonl"
    book = journal(path, RunStarted(at=1.0, pid=4711))
    before = path.read_bytes()

    def full(*_: Any, **__: Any) -> Any:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "replace", full)
    with pytest.raises(StoreError, match="disk full"):
        book.rewrite(silenced)
    monkeypatch.undo()
    assert path.read_bytes() == before
    book.append([RunStarted(at=2.0, pid=2)])
    book.close()


def test_journal_that_cannot_be_synced_is_not_rewritten(tmp_path: Path) -> None:
    """After a failed write, the content on the disk is uncertain."""
    book = journal(tmp_path / "journal.jsonl", RunStarted(at=1.0, pid=1))
    room = fill(book.log)
    book.record([RunStarted(at=2.0, pid=2)])
    room()
    book.rewrite(silenced)
    book.append([])
    book.close()
    assert len(Journal.open(tmp_path / "journal.jsonl").entries) == 2


# Delayed starts.


@virtual
async def test_held_session_delays_its_agent_and_holders(tmp_path: Path) -> None:  # noqa: ARG001
    """Other agents and subagents do not wait."""
    holds, forest = SessionHolds(), Forest()
    agent = forest.spec(id="a")
    others = [forest.spec(id="b"), forest.spec(id="c", parent_id="a")]
    held = [agent, forest.spec(id="h", parent_id="a", kind="holder")]
    with holds.hold("a"):
        waiting = [asyncio.ensure_future(holds.wait_until_released(spec)) for spec in (*held, *others)]
        await asyncio.sleep(0)
        assert [wait.done() for wait in waiting] == [False, False, True, True]
    await asyncio.gather(*waiting)


@pytest.mark.parametrize(
    ("text", "seconds"),
    [(0, 0), (1.5, 1.5), ("90m", 5400), ("12h", 43200), ("30d", 2592000), ("8w", 4838400), (" 1.5 D ", 129600)],
)
def test_age_is_parsed_in_seconds_or_with_a_unit(text: Any, seconds: float) -> None:
    """A number means seconds."""
    assert parse_age(text) == seconds


@pytest.mark.parametrize("text", ["", "30", "d", "30 dogs", "-1d", -1, float("nan"), float("inf"), True, None, [1]])
def test_invalid_age_explains_the_format(text: Any) -> None:
    """The ConfigError contains an example."""
    with pytest.raises(ConfigError, match=r"invalid age .*30d"):
        parse_age(text)


def test_unfinished_rewrite_is_removed_on_open(tmp_path: Path) -> None:
    """The leftover file of the rewrite is removed."""
    path = tmp_path / "journal.jsonl"
    journal(path, RunStarted(at=1.0, pid=1)).close()
    path.with_name("journal.jsonl.new").write_bytes(b"half")
    log, _ = AppendLog.open(path)
    log.close()
    assert not path.with_name("journal.jsonl.new").exists()
