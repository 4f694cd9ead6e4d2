"""What a root forgets when archives are deleted: in its tree, and in its journal."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import msgspec
import pytest

from orch.processes.session_holds import SessionHolds
from orch.services.archives.prune import seconds_of
from orch.tree.journal.entries import AgentSpawned, ContentDeleted, Entry, QueryFinished, RunStarted
from orch.tree.journal.events import (
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
from orch.tree.journal.journal import Journal
from orch.tree.rules.deletions import redacted
from orch_protocol.core.archives import ArchiveSource
from orch_protocol.core.errors import ArchiveDeletedError, ConfigError, StoreError
from orch_protocol.core.messages import Reply
from orch_worker.session.log.append_log import AppendLog
from orchestrator.root_double import fill
from orchestrator.tree_double import Forest, Launch, Notify, Signal
from virtual_clock import virtual

WHEN = "2026-11-21T10:20:30.400Z"
SECRET = "the secret"


class Past(Forest):
    """An agent with an archive, told of and asked; `SECRET` is in all that was said."""

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
        """Make the archive a holder; or let it know where its lines are."""
        source = ArchiveSource("/nowhere", self.agent, "turn", SECRET, ((at, 10),), "hash")
        spec = self.spec(id=id, kind="holder", name=id, task=SECRET, source=source, parent_id=self.agent)
        self.handle(AddHolder(spec))

    def turn(self, query_id: str, id: str | None = None) -> None:
        """Let the agent, or another one, answer a query in which something was said to it."""
        id = id or self.agent
        self.handle(StartQuery(id, query_id, SECRET))
        if self.status(id) == "starting":
            self.up(id)
        self.handle(QueueSteering(id, f"s-{query_id}", SECRET))
        self.handle(ConfirmSteering(id, f"s-{query_id}"))
        self.handle(FinishQuery(id, query_id, Reply(id, query_id, SECRET, files_changed=(SECRET,))))

    def delete(self, *holders: str, turns: tuple[str, ...] = ("q1",)) -> None:
        """Delete archives."""
        self.handle(RecordDeletion(self.agent, dict.fromkeys(holders, WHEN), dict.fromkeys(turns, WHEN)))


def told(entries: list[Entry]) -> list[Entry]:
    """Return those that tell the secret."""
    return [entry for entry in entries if SECRET in str(entry)]


def test_the_journal_tells_of_it_no_more() -> None:
    """Neither of the turns nor of what their holder was asked and said; what is folded is the same tree."""
    past = Past()
    assert len(told(past.journal)) == 9
    past.delete("h1")
    after = redacted(past.journal)
    assert [type(entry) for entry in after] == [type(entry) for entry in past.journal]
    assert told(after) == [entry for entry in past.journal if isinstance(entry, AgentSpawned) and entry.id == "h2"]
    tree = Forest()
    tree.tree.apply(after)
    assert tree.tree.agents.by_id == past.tree.agents.by_id
    assert tree.tree.agents.names == past.tree.agents.names


def test_what_is_not_deleted_is_told_as_before() -> None:
    """An entry that stays is the same object; doing it again changes nothing."""
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
    """While the query is pending the journal keeps the prompt; afterwards the transcript has it."""
    past = Past()
    past.ask(past.agent, "q3", stays=True, prompt="all of it")
    if shortened:
        past.journal = past.tree.agents.kept(past.now)
    assert b"all of it" in msgspec.json.encode(redacted(past.journal))
    past.finish(past.agent, "q3")
    after = redacted(past.journal)
    assert b"all of it" not in msgspec.json.encode(after)
    tree = Forest()
    tree.tree.apply(after)
    assert tree.tree.agents.by_id == past.tree.agents.by_id


def test_where_a_holder_found_what_it_holds_is_told_once() -> None:
    """The latest place counts: of an era it has texts, which may be of what is deleted."""
    past = Past()
    past.hold("h2", at=99)
    past.hold("h2", at=7)
    past.hold("h2", at=7)
    places = [entry.source.spans for entry in redacted(past.journal) if getattr(entry, "source", None)]
    assert places == [((7, 10),)]
    tree = Forest()
    tree.tree.apply(redacted(past.journal))
    assert tree.tree.agents.by_id == past.tree.agents.by_id


def test_a_deleted_holder_answers_nobody() -> None:
    """It is listed as killed, and says when what it held was deleted; resuming it is no help."""
    past = Past()
    past.delete("h1")
    assert (past.status("h1"), past.status("h2")) == ("killed", "cold")
    for asked in (StartQuery("h1", "q9", "hi"), QueueSteering("h1", "s9", "hi"), ResumeRequested("h1")):
        with pytest.raises(ArchiveDeletedError, match="h1 held was deleted on 2026-11-21"):
            past.handle(asked)
    assert past.refold().agents.by_id == past.tree.agents.by_id


def test_who_waits_for_a_deleted_holder_is_told() -> None:
    """It was asked as its archive was being deleted: its process does not come up, and the error says why."""
    past = Past(warm=False)
    past.ask("h1", "q9")
    assert past.told(Launch)
    past.delete("h1")
    [up, query] = sorted(past.told(Notify), key=lambda notify: notify.topic, reverse=True)
    assert (up.topic, query.topic) == ("up:h1", "query:q9")
    assert query.error.type == "ArchiveDeletedError"
    assert past.told(Signal) == [Signal("h1", 1, "kill")]
    past.gone("h1")
    assert past.status("h1") == "killed"
    assert past.tree.agents["h1"].deleted == WHEN
    assert past.refold().agents.by_id == past.tree.agents.by_id


def test_what_is_known_to_be_deleted_is_not_told_twice() -> None:
    """Of holders that were asked and of others."""
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


def test_the_answer_that_can_still_be_collected_is_deleted_too() -> None:
    """If it is that of a deleted turn."""
    past = Past()
    past.delete("h1")
    last = past.tree.agents[past.agent].last
    assert last is not None
    assert last.reply is not None
    assert (last.reply.text, last.reply.files_changed) == ("[deleted on 2026-11-21]", ())


@pytest.mark.parametrize(("status", "rests"), [("idle", True), ("busy", False), ("starting", False), ("cold", False)])
def test_only_who_idles_is_sent_to_rest(status: str, rests: bool) -> None:
    """The others are at work, or have no process."""
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


# The journal's file.


def journal(path: Path, *entries: Entry) -> Journal:
    opened = Journal.open(path)
    opened.append(list(entries))
    return opened


def silenced(entries: Any) -> list[Entry]:
    return [msgspec.structs.replace(entry, pid=0) if isinstance(entry, RunStarted) else entry for entry in entries]


def test_a_journal_is_written_anew(tmp_path: Path) -> None:
    """What is damaged or of a later version stays, and what follows is written to the new file."""
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


def test_a_journal_that_need_not_change_is_left_alone(tmp_path: Path) -> None:
    """It is the same file afterwards."""
    path = tmp_path / "journal.jsonl"
    book = journal(path, RunStarted(at=1.0, pid=1))
    before = path.stat().st_ino
    book.rewrite(list)
    assert path.stat().st_ino == before
    book.close()


def test_a_full_disk_leaves_the_journal(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It says so, and goes on."""
    path = tmp_path / "journal.jsonl"
    book = journal(path, RunStarted(at=1.0, pid=4711))
    before = path.read_bytes()

    def full(*_: Any) -> Any:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("orch_worker.session.log.atomic_rewrite.os.replace", full)
    with pytest.raises(StoreError, match="disk full"):
        book.rewrite(silenced)
    monkeypatch.undo()
    assert path.read_bytes() == before
    book.append([RunStarted(at=2.0, pid=2)])
    book.close()


def test_a_journal_that_cannot_be_synced_is_not_written_anew(tmp_path: Path) -> None:
    """What it holds is uncertain."""
    book = journal(tmp_path / "journal.jsonl", RunStarted(at=1.0, pid=1))
    room = fill(book.log)
    book.record([RunStarted(at=2.0, pid=2)])
    room()
    book.rewrite(silenced)
    book.append([])
    book.close()
    assert len(Journal.open(tmp_path / "journal.jsonl").entries) == 2


# Whom the root keeps from starting.


@virtual
async def test_who_is_held_waits(tmp_path: Path) -> None:  # noqa: ARG001
    """An agent and its holders; nobody else."""
    holds, forest = SessionHolds(), Forest()
    agent = forest.spec(id="a")
    others = [forest.spec(id="b"), forest.spec(id="c", parent_id="a")]
    held = [agent, forest.spec(id="h", parent_id="a", kind="holder")]
    with holds.hold("a"):
        waiting = [asyncio.ensure_future(holds.over(spec)) for spec in (*held, *others)]
        await asyncio.sleep(0)
        assert [wait.done() for wait in waiting] == [False, False, True, True]
    await asyncio.gather(*waiting)


@pytest.mark.parametrize(
    ("text", "seconds"),
    [(0, 0), (1.5, 1.5), ("90m", 5400), ("12h", 43200), ("30d", 2592000), ("8w", 4838400), (" 1.5 D ", 129600)],
)
def test_an_age(text: Any, seconds: float) -> None:
    """Seconds, or a number with a unit."""
    assert seconds_of(text) == seconds


@pytest.mark.parametrize("text", ["", "30", "d", "30 dogs", "-1d", -1, float("nan"), float("inf"), True, None, [1]])
def test_no_age(text: Any) -> None:
    """Anything else is told what an age is."""
    with pytest.raises(ConfigError, match=r"invalid age .*30d"):
        seconds_of(text)


def test_the_log_is_the_journals_own(tmp_path: Path) -> None:
    """An unfinished rewriting of it goes when it is opened."""
    path = tmp_path / "journal.jsonl"
    journal(path, RunStarted(at=1.0, pid=1)).close()
    path.with_name("journal.jsonl.new").write_bytes(b"half")
    log, _ = AppendLog.open(path)
    log.close()
    assert not path.with_name("journal.jsonl.new").exists()
