"""What is deleted is gone from the file, and everything else is what it was."""

from __future__ import annotations

import os
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
from orch_worker.context.compaction_summary import CompactionDigest, details_of, on_record
from orch_worker.session.log.append_log import load
from orch_worker.session.log.lock import FolderLock
from orch_worker.session.plan import new_tasks
from orch_worker.session.transcript import Transcript
from orchestrator.archival.store.prune_samples import EVER, MARK, NEVER, file, later, session

pytestmark = pytest.mark.usefixtures("no_disk")


@pytest.mark.parametrize("data", ["text", None, [1], {"steps": "no steps"}, {"steps": [{"type": "unheard of"}]}])
def test_what_others_kept_under_a_name_of_ours_stays(life: Life, data: object) -> None:
    """As in a session that came from elsewhere: it keeps nobody from deleting what is to go."""
    life.transcript.custom("workspace", data)
    life.turn(*steps(2, "needle", 30), answer="so it is")
    life.archive()
    life.prune(EVER)
    assert "word1" not in file(life)
    assert [entry.data for entry in life.transcript.session.entries if type(entry) is Custom] == [data]
    life.check()


def test_messages_are_gone_and_the_conversation_is_not(life: Life) -> None:
    """Prompt, record and answer stay as the conversation shows them; calls, results and the reply's text are gone."""
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


def test_a_summary_goes_with_the_archive_that_stands_for_it(life: Life) -> None:
    """As long as the conversation shows it, it stays; what it was made of may be deleted before."""
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


def test_a_summary_that_is_shown_no_more_is_gone_with_its_archive(long: Life) -> None:
    """It tells of what was deleted, so it is deleted too."""
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


def test_what_a_summary_is_shown_with_stays_when_its_archives_go(life: Life) -> None:
    """What they were about, beside their ids; and that goes too, once it is shown no more."""
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


def test_the_task_that_a_deleted_summary_knew_is_still_known(long: Life) -> None:
    """The next summary is told it, and nothing else of what was deleted."""
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
    assert on_record(long.transcript.session.compacted) == CompactionDigest(task="Mend the pump")
    long.check()


def test_what_was_deleted_says_so(life: Life) -> None:
    """However it is asked for."""
    life.turn(*steps(1))
    [holder] = life.archive()
    life.prune(EVER)
    for asked in (
        lambda: life.read(holder),
        lambda: life.read(holder[:6]),
        lambda: life.loop.run(life.archives.source(life.spec, holder)),
        lambda: life.loop.run(life.archives.record(life.spec, holder)),
    ):
        with pytest.raises(ArchiveDeletedError, match=rf"{holder} held was deleted on 2026-11-21 \(at 10:20:30 UTC"):
            asked()


def test_search_finds_it_no_more(life: Life, tmp_path: Path) -> None:
    """Not by its words, not by the prompt that the conversation still shows; others are found where they are."""
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


def test_an_era_keeps_what_is_younger(long: Life) -> None:
    """Of what it holds, the messages of deleted members say so; the others are what they were, under their numbers."""
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


def test_members_go_with_what_they_are_in(long: Life) -> None:
    """Though a clock that was set back says that they are younger."""
    for number in range(12):
        long.turn(*steps(2, f"t{number}.", 60), asked=f"ask {number}")
        long.archive()
    ledger = long.ledger()
    era = next(record for record in ledger.records.values() if record.kind == "era")
    for record in ledger.records.values():
        ledger.keep(msgspec.structs.replace(record, timestamp="2000" if record is era else "2030"))
    assert {record.id for record in entries_to_delete(ledger, "2001").records} >= {era.id, *era.members}


def test_a_prompt_goes_when_it_is_shown_no_more(long: Life) -> None:
    """It stays as long as the conversation shows it; once its turn is part of an era, the next time takes it."""
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


def test_a_summary_goes_when_it_is_shown_no_more(long: Life) -> None:
    """What a model said of a turn is in the record of the era by then, or nowhere."""
    long.turn(*steps(3, "t", 60))
    [holder] = long.archive()
    long.summarise(holder, "it was about my secret")
    long.prune(EVER)
    assert "my secret" in "".join(map(text_of, long.transcript.session.messages))
    for number in range(12):
        long.turn(*steps(2, f"t{number}.", 60))
        long.archive()
    long.prune(NEVER)
    assert "my secret" not in file(long)
    long.check()


def test_what_was_one_write_still_is(long: Life) -> None:
    """Archives that were put on record together are there together, or not at all, for whoever reads on."""
    for number in range(12):
        long.turn(*steps(2, f"t{number}.", 60))
        long.archive()
    before = ['"m":1,"c":' in line for line in file(long).splitlines()]
    assert any(before)
    long.prune(long.records()[2].timestamp)
    assert ['"m":1,"c":' in line for line in file(long).splitlines()] == before


def test_a_phase_goes_and_its_turn_goes_on(long: Life) -> None:
    """Its prompt is what the turn is about, and is there when the turn itself is archived."""
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


def test_what_brought_a_mark_goes_and_the_mark_stays(life: Life) -> None:
    """Of a deleted turn nobody reads which page it was; that there was one binds what the agent may do, as before."""
    life.begin("what now?")
    life.say(*steps(1, "s", 60))
    life.transcript.marks((taint_label("untrusted", "fetch_url https://needle.example"),), f"q{life.queries}")
    life.say(*steps(1, "t", 60), assistant("so it is"))
    life.end()
    life.archive()
    life.prune(EVER)
    assert "needle" not in file(life)
    assert life.transcript.session.marks == (TaintLabel("untrusted"),)


def test_what_was_said_beside_a_turn_goes_with_it(life: Life) -> None:
    """Of what an assessment or a reflection said nothing is left, nor why a hook failed; what it took stays counted."""
    life.begin("what now?")
    for phase in ("assess", "reflect"):
        life.transcript.phase(
            turn=f"q{life.queries}", phase=phase, by="model", note="needle", did=("note",), usage=Usage(5, 1)
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
    assert [(entry.note, entry.deleted, entry.did) for entry in left] == [("", DELETED, ("note",))] * 2
    assert used.input_tokens == 10
    [kept] = [entry.data for entry in life.transcript.session.entries if isinstance(entry, Custom)]
    assert [(each["hook"], each.get("error")) for each in kept["acts"]] == [("guard", None), ("odd", "deleted")]


def test_tasks_of_long_ago_go_and_those_in_force_stay(life: Life) -> None:
    """What a deleted turn meant to do goes with it, but for the list that the agent still goes by."""
    for name in ("first", "second"):
        life.begin("what now?")
        life.say(*steps(1))
        life.transcript.tasks(new_tasks([f"{name} needle"]), f"q{life.queries}")
        life.say(assistant("so"))
        life.end()
        life.archive()
    life.prune(EVER)
    assert "first needle" not in file(life)
    assert life.transcript.session.tasks == new_tasks(["second needle"])
    life.transcript.tasks(new_tasks(["third"]), "")
    life.prune(EVER)
    assert life.transcript.session.tasks == new_tasks(["third"])
    life.check()


def test_twice_is_once(life: Life) -> None:
    """A second time there is nothing to do, and not a byte changes."""
    life.turn(*steps(1))
    life.archive()
    life.prune(EVER)
    before = life.transcript.path.stat()
    assert not life.prune(EVER).going.due
    assert life.transcript.path.stat().st_ino == before.st_ino


def test_nothing_old_enough(life: Life) -> None:
    """Nothing is written."""
    life.turn(*steps(1))
    life.archive()
    before = file(life)
    done = life.prune(NEVER)
    assert (done.going.records, done.archives, done.turns) == ((), {}, {})
    assert file(life) == before


def test_the_holders_own_session_goes_too(life: Life, tmp_path: Path) -> None:
    """What it was asked, and what it said, in quotations; its size is part of what is told."""
    life.turn(*steps(1))
    [holder] = life.archive()
    own = tmp_path / deletion.HOLDERS / holder
    asked = Transcript.open(own, agent=holder, cwd="/")
    asked.message(user("needle?"))
    asked.close()
    _, beside = life.loop.run(life.archives.doomed(life.spec, EVER))
    assert beside >= len("needle?")
    assert life.prune(EVER).bytes == beside
    assert not own.exists()


def test_a_holder_at_work_is_left_alone(life: Life, tmp_path: Path) -> None:
    """Whoever has its folder is told of; the next time it goes."""
    life.turn(*steps(1))
    [holder] = life.archive()
    lock = FolderLock.acquire(tmp_path / deletion.HOLDERS / holder)
    life.transcript.close()
    with pytest.raises(LockedError):
        life.loop.run(life.archives.delete(life.spec, EVER, DELETED))
    lock.release()
    life.restart()
    life.prune(EVER)
    assert not (tmp_path / deletion.HOLDERS / holder).exists()


def test_an_agent_with_a_process_is_left_alone(life: Life) -> None:
    """Its file is its own."""
    life.turn(*steps(1))
    life.archive()
    with pytest.raises(LockedError, match="is in use by process"):
        life.loop.run(life.archives.delete(life.spec, EVER, DELETED))


def test_long_results_go_with_the_messages_that_name_them(life: Life, tmp_path: Path) -> None:
    """What was stashed under a handle that only they name; others stay."""
    stash = tmp_path / "stash"
    stash.mkdir()
    for number in (1, 2):
        (stash / f"h_00{number}-{'0' * 32}.txt").write_text(f"needle {number}")
    life.turn(call("c"), result("c", text="see .h_001"))
    life.archive()
    life.say(user("see .h_002"), turn="")
    life.prune(EVER)
    assert [file.read_text() for file in stash.iterdir()] == ["needle 2"]


def test_bytes_that_were_cut_off_go_when_they_are_as_old(life: Life, tmp_path: Path) -> None:
    """They may be of the same turns."""
    life.turn(*steps(1))
    life.archive()
    old, young = tmp_path / "session.jsonl.torn-1", tmp_path / "session.jsonl.torn-2"
    for torn, at in ((old, 1.0), (young, 4e9)):
        torn.write_text("x")
        os.utime(torn, (at, at))
    life.prune("2030-01-01T00:00:00.000Z")
    assert (old.exists(), young.exists()) == (False, True)


def test_the_new_file_is_sound(life: Life) -> None:
    """Its chain of checksums holds from the first line to the last, and it goes on there."""
    life.turn(*steps(2))
    life.archive()
    life.prune(EVER)
    life.turn(*steps(1))
    assert load(life.transcript.path).report == ""
