"""Pruning deletes archived content from the session file and keeps everything else."""

from __future__ import annotations

import os
import time
from pathlib import Path

import msgspec
import pytest

from agent_history import DELETED, Life, call, result, steps
from orch.archival.store import deletion
from orch.archival.store.index import NAME as INDEX
from orch.archival.store.prune import entries_to_delete
from orch.tree.agents.agent_record import redacted_message
from orch_protocol.core.errors import ArchiveDeletedError, LockedError
from orch_protocol.core.messages import Usage, assistant, text_of, user
from orch_protocol.core.taint import TaintLabel, taint_label
from orch_protocol.hooks.stages import ACTED, HookAction, HookActions
from orch_protocol.session.entries import Custom, PhaseEntry
from orch_worker.context.compaction_summary import CompactionDigest, details_of, recorded_digest
from orch_worker.session.log.lock import FolderLock
from orch_worker.session.log.log_reader import load
from orch_worker.session.plan import new_tasks
from orch_worker.session.transcript import Transcript
from orchestrator.archival.store.prune_samples import EVER, MARK, NEVER, file, later, session

pytestmark = pytest.mark.usefixtures("no_disk")


@pytest.mark.parametrize("data", ["text", None, [1], {"steps": "no steps"}, {"steps": [{"type": "unheard of"}]}])
def test_foreign_entries_with_our_type_names_survive_pruning(life: Life, data: object) -> None:
    """Pruning leaves an imported entry unchanged if its type name is that of an orch entry."""
    life.transcript.custom("workspace", data)
    life.turn(*steps(2, "needle", 30), answer="so it is")
    life.archive()
    life.prune(EVER)
    assert "word1" not in file(life)
    assert [entry.data for entry in life.transcript.session.entries if type(entry) is Custom] == [data]
    life.check()


def test_pruning_deletes_messages_and_keeps_the_conversation(life: Life) -> None:
    """Prompt and record stay in the conversation. Calls, results and the reply's text are deleted."""
    life.turn(*steps(2, "needle", 30), asked="what of it?", answer="so it is, at length " * 10)
    [holder] = life.archive()
    before = session(life)
    assert file(life).count("word1") == 30
    done = life.prune(EVER)
    assert [record.id for record in done.going.records] == [holder]
    assert done.archives == {holder: DELETED}
    assert done.turns == {"q1": DELETED}
    after = session(life)
    assert after.pop("holders") == set()
    before.pop("holders")
    assert after == before
    assert "word1" not in file(life)
    assert file(life).count("so it is, at length so it is") == 0
    assert life.transcript.session.replies["q1"].text == MARK
    assert "what of it?" in file(life)
    life.check()


def test_compaction_summary_is_deleted_with_its_archive(life: Life) -> None:
    """The summary stays in the file while the conversation shows it."""
    life.turn(*steps(2, "needle", 30))
    life.archive()
    life.turn(*steps(3, "thorn", 30), stop="error")
    life.compact(5)
    life.check()
    assert "summary of 2" in file(life)
    life.turn(*steps(1))
    holders = life.archive()
    assert [record.members for record in life.records() if record.id == holders[0]] == [(life.records()[0].id,)]
    assert "summary of 2" in text_of(life.transcript.session.messages[0])
    life.prune(EVER)
    assert "summary of 2" in file(life)
    life.transcript.checkout(None)
    life.turn(*steps(1))
    life.check()
    assert "word1 word1" not in file(life)


def test_hidden_summary_is_deleted_with_its_archives(long: Life) -> None:
    """A summary inside an era contains deleted content, so pruning replaces its text."""
    for number in range(3):
        long.turn(*steps(2, f"n{number}", 30))
    long.compact(4)
    for number in range(12):
        long.turn(*steps(3, f"m{number}", 60))
        long.archive()
    shown = "".join(map(text_of, long.transcript.session.messages))
    assert "[Summary of" not in shown
    assert '"summary":"summary of 3"' in file(long)
    long.prune(EVER)
    assert '"summary":"summary of 3"' not in file(long)
    assert f'"summary":"{MARK}"' in file(long)
    long.check()


def test_archive_descriptions_in_a_summary_stay_while_it_is_shown(life: Life) -> None:
    """The description next to each archive's id is deleted once the conversation no longer shows the summary."""
    life.turn(*steps(2, "needle", 30), asked="the copper valve", answer="it sticks")
    [holder] = life.archive()
    life.turn(*steps(1))
    life.compact(2)
    shown = life.transcript.session.messages
    assert "It was about: the copper valve" in text_of(shown[0])
    life.prune(EVER)
    assert life.transcript.session.messages == shown
    assert life.transcript.session.view.holders() == []
    assert [record.deleted for record in life.records()] == [DELETED]
    assert "needle" not in file(life)
    assert "it sticks" not in file(life)
    life.check()
    life.go(None)
    life.turn(*steps(1))
    life.prune(EVER)
    assert "the copper valve" not in file(life)
    assert life.records()[0].id == holder
    life.check()


def test_task_of_a_deleted_summary_is_kept(long: Life) -> None:
    """The next summary receives the task and no other part of the deleted summary."""
    long.turn(*steps(2, "needle", 30))
    known = details_of(CompactionDigest(task="Mend the pump", question="a thorn?"), "a thorn")
    kept = long.transcript.session.view.items[1].first
    long.transcript.compaction(summary="a thorn", first_kept_entry_id=kept, writer="extract", details=known)
    for number in range(12):
        long.turn(*steps(3, f"m{number}", 60))
        long.archive()
    long.prune(EVER)
    assert "a thorn?" not in file(long)
    assert '"summary":"a thorn"' not in file(long)
    assert recorded_digest(long.transcript.session.compacted) == CompactionDigest(task="Mend the pump")
    long.check()


def test_deleted_archive_is_reported_as_deleted(life: Life) -> None:
    """Reading, asking and describing a deleted archive raise ArchiveDeletedError with the time."""
    life.turn(*steps(1))
    [holder] = life.archive()
    life.prune(EVER)
    for asked in (
        lambda: life.read(holder),
        lambda: life.read(holder[:6]),
        lambda: life.loop.run(life.archives.source(life.spec, holder)),
        lambda: life.loop.run(life.archives.record(life.spec, holder)),
    ):
        with pytest.raises(ArchiveDeletedError, match=rf"{holder} was deleted on 2026-11-21 \(at 10:20:30 UTC"):
            asked()


def test_search_does_not_find_deleted_content(life: Life, tmp_path: Path) -> None:
    """Search finds neither deleted words nor the prompt of a deleted turn, and the index contains neither."""
    life.turn(*steps(1, "needle"), asked="what of apples?")
    life.archive()
    first = later(life)
    life.turn(*steps(1, "thorn"), asked="what of pears?")
    [other] = life.archive()

    def found(query: str) -> list[str]:
        return [hit.id for hit in life.loop.run(life.archives.search(life.spec, query, 10)) if hit.exact]

    assert len(found("needle0.txt")) == len(found("apples")) == 1
    life.forget()
    assert b"eedle0" in (tmp_path / INDEX).read_bytes()
    life.prune(first)
    assert not (tmp_path / INDEX).exists()
    assert found("needle0.txt") == found("apples") == found("deleted") == []
    assert found("thorn0.txt") == found("pears") == [other]
    life.forget()
    assert b"eedle" not in (tmp_path / INDEX).read_bytes()
    assert found("thorn0.txt") == [other]


def test_era_keeps_younger_members(long: Life) -> None:
    """Messages of deleted members are replaced by a marker. Other messages keep their numbers."""
    for number in range(12):
        long.turn(*steps(2, f"t{number}.", 60), asked=f"ask {number}")
        long.archive()
    records = long.records()
    era = next(record for record in reversed(records) if record.kind == "era")
    members = [record for record in records if record.id in era.members]
    whole = long.read(era.id)
    done = long.prune(members[0].timestamp)
    assert era.id not in done.archives
    now = long.read(era.id)
    assert len(now) == len(whole)
    changed = [place for place, (one, two) in enumerate(zip(whole, now, strict=True)) if one != two]
    assert changed
    assert all(now[place] == redacted_message(whole[place], DELETED) for place in changed)
    assert long.read(era.id, changed[0] + 1, changed[0] + 1) == [now[changed[0]]]
    source = long.loop.run(long.archives.source(long.spec, era.id))
    gone = [id for id in era.members if id in done.archives]
    assert [text_of(message) for message in source.shown].count(MARK) == len(gone)
    long.check()


def test_members_are_deleted_with_their_era(long: Life) -> None:
    """The members are deleted even if a wrong clock dates them later."""
    for number in range(12):
        long.turn(*steps(2, f"t{number}.", 60), asked=f"ask {number}")
        long.archive()
    ledger = long.ledger()
    era = next(record for record in ledger.records.values() if record.kind == "era")
    for record in ledger.records.values():
        ledger.put(msgspec.structs.replace(record, timestamp="2000" if record is era else "2030"))
    assert {record.id for record in entries_to_delete(ledger, "2001").records} >= {era.id, *era.members}


def test_prompt_is_deleted_once_it_is_hidden(long: Life) -> None:
    """The prompt of a deleted turn stays while it is shown. After its turn joins an era, the next pruning deletes
    it."""
    long.turn(*steps(3, "t", 60), asked="what of it?" + " please" * 12 + " my secret")
    long.archive()
    long.prune(EVER)
    assert "my secret" in file(long)
    for number in range(12):
        long.turn(*steps(2, f"t{number}.", 60), asked=f"ask {number}")
        long.archive()
    assert "my secret" not in "".join(map(text_of, long.transcript.session.messages))
    long.prune(NEVER)
    assert "my secret" not in file(long)
    long.check()


def test_summary_is_deleted_once_it_is_hidden(long: Life) -> None:
    """The summary of a deleted turn stays while it is shown. After its turn joins an era, the next pruning deletes
    it."""
    long.turn(*steps(3, "t", 60))
    [holder] = long.archive()
    long.summarize(holder, "it was about my secret")
    long.prune(EVER)
    assert "my secret" in "".join(map(text_of, long.transcript.session.messages))
    for number in range(12):
        long.turn(*steps(2, f"t{number}.", 60))
        long.archive()
    long.prune(NEVER)
    assert "my secret" not in file(long)
    long.check()


def test_atomic_appends_stay_atomic(long: Life) -> None:
    """Pruning keeps the marks that join the lines of one append."""
    for number in range(12):
        long.turn(*steps(2, f"t{number}.", 60))
        long.archive()
    before = ['"m":1,"c":' in line for line in file(long).splitlines()]
    assert any(before)
    long.prune(long.records()[2].timestamp)
    assert ['"m":1,"c":' in line for line in file(long).splitlines()] == before


def test_phase_is_deleted_while_its_turn_continues(long: Life) -> None:
    """The prompt stays, and the later archive of the turn contains markers for the phase's messages."""
    long.begin("what of it?")
    for step in range(4):
        long.say(*steps(1, f"s{step}", 60))
        long.archive(None)
    assert {record.kind for record in long.records()} == {"phase"}
    gone = long.prune(EVER).archives
    long.check()
    long.say(*steps(1, "last", 60), assistant("so it is"))
    long.end()
    long.archive()
    [turn] = [record for record in long.records() if record.kind == "turn"]
    assert set(turn.members) >= set(gone)
    messages = long.read(turn.id)
    assert text_of(messages[0]) == "what of it?"
    assert messages[1:3] == [redacted_message(message, DELETED) for message in messages[1:3]]
    assert text_of(messages[-1]) == "so it is"
    long.check()


def test_taint_survives_the_deletion_of_its_origin(life: Life) -> None:
    """Pruning deletes the origin of the taint from the file and keeps the label."""
    life.begin("what now?")
    life.say(*steps(1, "s", 60))
    life.transcript.record_taint_labels((taint_label("untrusted", "fetch_url https://needle.example"),))
    life.say(*steps(1, "t", 60), assistant("so it is"))
    life.end()
    life.archive()
    life.prune(EVER)
    assert "needle" not in file(life)
    assert life.transcript.session.taint_labels == (TaintLabel("untrusted"),)


def test_side_requests_are_deleted_with_their_turn(life: Life) -> None:
    """Assessments, reflections and hook errors are deleted. Their usage stays."""
    life.begin("what now?")
    for phase in ("assess", "reflect"):
        life.transcript.phase(
            turn=f"q{life.queries}", phase=phase, by="model", note="needle", actions=("note",), usage=Usage(5, 1)
        )
        life.say(*steps(1, phase, 60))
    acts = (HookAction("guard", "tool_call", ("block",)), HookAction("odd", "tool_result", error="failed: needle"))
    life.transcript.custom(ACTED, msgspec.to_builtins(HookActions(f"q{life.queries}", acts)))
    used = life.transcript.session.usage
    life.say(assistant("so it is"))
    life.end()
    life.archive()
    life.prune(EVER)
    assert "needle" not in file(life)
    left = [entry for entry in life.transcript.session.entries if isinstance(entry, PhaseEntry)]
    assert [(entry.note, entry.deleted, entry.actions) for entry in left] == [("", DELETED, ("note",))] * 2
    assert used.input_tokens == 10
    [kept] = [entry.data for entry in life.transcript.session.entries if isinstance(entry, Custom)]
    assert [(each["hook"], each.get("error")) for each in kept["acts"]] == [("guard", None), ("odd", "deleted")]


def test_old_tasks_are_deleted_and_current_ones_kept(life: Life) -> None:
    """Pruning deletes the task lists of archived turns, except for the current list."""
    for name in ("first", "second"):
        life.begin("what now?")
        life.say(*steps(1))
        life.transcript.tasks(new_tasks([f"{name} needle"]))
        life.say(assistant("so"))
        life.end()
        life.archive()
    life.prune(EVER)
    assert "first needle" not in file(life)
    assert life.transcript.session.tasks == new_tasks(["second needle"])
    life.transcript.turn = ""
    life.transcript.tasks(new_tasks(["third"]))
    life.prune(EVER)
    assert life.transcript.session.tasks == new_tasks(["third"])
    life.check()


def test_pruning_twice_changes_nothing(life: Life) -> None:
    """The second pruning finds no content to delete and does not rewrite the file."""
    life.turn(*steps(1))
    life.archive()
    life.prune(EVER)
    before = life.transcript.path.stat()
    assert not life.prune(EVER).going.due
    assert life.transcript.path.stat().st_ino == before.st_ino


def test_pruning_without_old_archives_writes_nothing(life: Life) -> None:
    """The file is unchanged, and the result is empty."""
    life.turn(*steps(1))
    life.archive()
    before = file(life)
    done = life.prune(NEVER)
    assert (done.going.records, done.archives, done.turns) == ((), {}, {})
    assert file(life) == before


def test_holder_session_is_deleted_with_its_archive(life: Life, tmp_path: Path) -> None:
    """The reported size includes the holder's session."""
    life.turn(*steps(1))
    [holder] = life.archive()
    own = tmp_path / deletion.HOLDERS / holder
    asked = Transcript.open(own, agent=holder, cwd="/")
    asked.message(user("needle?"))
    asked.close()
    _, beside = life.loop.run(life.archives.content_to_delete(life.spec, EVER))
    assert beside == sum(path.stat().st_size for path in own.iterdir()) >= len("needle?")
    life.prune(EVER)
    assert not own.exists()


def test_working_holder_is_skipped_and_reported(life: Life, tmp_path: Path) -> None:
    """The next pruning deletes the holder's session."""
    life.turn(*steps(1))
    [holder] = life.archive()
    lock = FolderLock.acquire(tmp_path / deletion.HOLDERS / holder)
    life.transcript.close()
    life.loop.run(life.archives.delete(life.spec, EVER, DELETED))
    with pytest.raises(LockedError):
        life.loop.run(life.archives.finish_deletion(life.spec, rewritten=True))
    lock.release()
    life.restart()
    life.prune(EVER)
    assert not (tmp_path / deletion.HOLDERS / holder).exists()


def test_agent_with_a_process_is_skipped(life: Life) -> None:
    """The process writes its session file, so pruning refuses with LockedError."""
    life.turn(*steps(1))
    life.archive()
    with pytest.raises(LockedError, match="is in use by process"):
        life.loop.run(life.archives.delete(life.spec, EVER, DELETED))


def test_stored_results_are_deleted_with_their_messages(life: Life, tmp_path: Path) -> None:
    """Pruning keeps a stored result if another message mentions its handle."""
    stash = tmp_path / "stash"
    stash.mkdir()
    for number in (1, 2):
        (stash / f"h_00{number}-{'0' * 32}.txt").write_text(f"needle {number}")
    life.turn(call("c"), result("c", text="see .h_001"))
    life.archive()
    life.say(user("see .h_002"), turn="")
    life.prune(EVER)
    assert [file.read_text() for file in stash.iterdir()] == ["needle 2"]


def test_torn_tails_of_the_same_age_are_deleted(life: Life, tmp_path: Path) -> None:
    """Torn tails that are not newer than the deleted archives may contain deleted messages."""
    life.turn(*steps(1))
    life.archive()
    old, young = tmp_path / "session.jsonl.torn-1", tmp_path / "session.jsonl.torn-2"
    for torn, at in ((old, 1.0), (young, time.time() + 60)):
        torn.write_text("x")
        os.utime(torn, (at, at))
    life.prune("2030-01-01T00:00:00.000Z")
    assert (old.exists(), young.exists()) == (False, True)


def test_pruned_file_has_a_valid_checksum_chain(life: Life) -> None:
    """The log accepts appends after pruning and reads without a report of damage."""
    life.turn(*steps(2))
    life.archive()
    life.prune(EVER)
    life.turn(*steps(1))
    assert load(life.transcript.path).report == ""
