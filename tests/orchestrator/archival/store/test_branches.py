"""Archives of sessions with branches: which archives and messages each branch shows."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from agent_history import DELETED, EAGER, PROFILES, Life, call, result, steps
from orch.archival.store.session_archives import SessionArchives
from orch.sessions.audit import audit
from orch_protocol.core.messages import Text, assistant, text_of, user
from orch_worker.conversation.stubs import holders_in, stub_text, stubs_in
from orch_worker.session.log.append_log import AppendLog
from orch_worker.session.session_index import read_session_index
from orchestrator.archival.store.prune_samples import MARK, file, later

LATER = "2999-01-01T00:00:00.000Z"


@pytest.fixture(autouse=True)
def _no_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(AppendLog, "_fdatasync", staticmethod(lambda _: None))


@pytest.fixture
def life(tmp_path: Path) -> Iterator[Life]:
    """An agent whose finished turns are all archived."""
    life = Life(tmp_path / "agent", EAGER)
    yield life
    life.close()


def last(life: Life) -> str:
    """Return the id of the last entry."""
    return life.transcript.session.leaf or ""


def stubs(life: Life) -> list[str]:
    """Return the holders of the records in the conversation."""
    return [holder for message in life.transcript.session.messages for holder in holders_in(message)]


def test_archives_before_the_branch_point_stay_archived(life: Life) -> None:
    """Turns after the branch point have no record on the new branch, but their archives can still be read."""
    life.turn(*steps(2, "one"))
    (early,) = life.archive()
    life.turn(*steps(2, "two"), answer="the second")
    point = last(life)
    life.turn(*steps(2, "three"))
    late = life.archive()
    assert stubs(life) == [early, *late]
    life.go(point)
    life.check()
    assert stubs(life) == [early]
    messages = life.transcript.session.messages
    assert [text_of(message) for message in messages[-6:]] == ["ask 2", "", "", "", "", "the second"]
    assert [len(life.read(holder)) for holder in late] == [6, 6]
    assert life.read(late[0])[-1] == assistant("the second")


def test_returning_to_a_branch_restores_its_records(life: Life) -> None:
    """Each branch shows the records of its own archives."""
    life.turn(*steps(1, "one"))
    life.archive()
    point = last(life)
    life.turn(*steps(1, "left"))
    (there,) = life.archive()
    end = last(life)
    life.go(point)
    life.turn(*steps(1, "right"))
    (here,) = life.archive()
    assert stubs(life)[1:] == [here]
    life.go(end)
    assert stubs(life)[1:] == [there]
    life.check()


def test_reopened_turn_is_archived_without_its_abandoned_branch(life: Life) -> None:
    """Entries of an abandoned branch between the turn's entries are not part of its archive."""
    life.begin("look")
    life.say(call("a"), result("a"))
    point = last(life)
    life.say(call("dead"), result("dead", text="the dead end"))
    life.go(point)
    life.say(call("b"), result("b"), assistant("found"))
    life.end()
    (holder,) = life.archive()
    held = life.read(holder)
    assert held == [user("look"), call("a"), result("a"), call("b"), result("b"), assistant("found")]
    assert life.ledger().records[holder].count == 6
    assert not [hit for hit in life.search("the dead end") if hit.exact]
    life.check()


def test_era_excludes_entries_of_abandoned_branches(tmp_path: Path) -> None:
    """An era contains neither messages nor archives of abandoned branches."""
    life = Life(tmp_path / "agent", PROFILES["tight"])
    for number in range(12):
        life.turn(*steps(2, f"t{number}", 40))
        life.archive()
        point = last(life)
        life.turn(*steps(2, f"dead{number}", 40), asked=f"dead {number}")
        life.archive()
        life.go(point)
        life.check()
    eras = [record for record in life.records() if record.kind == "era" and record.id in stubs(life)]
    assert eras
    for era in eras:
        assert not [message for message in life.read(era.id) if "dead" in str(message)]
    life.close()


def test_archives_of_all_branches_are_found(life: Life) -> None:
    """A search finds archives of every branch, also after the root has restarted."""
    point = last(life) or None
    life.turn(*steps(1, "left", 30), asked="the copper valve")
    (left,) = life.archive()
    life.go(point)
    life.turn(*steps(1, "right", 30), asked="the iron pump")
    (right,) = life.archive()
    for _ in range(2):
        assert {hit.id for hit in life.search("copper valve") if hit.exact} == {left}
        assert {hit.id for hit in life.search("iron pump") if hit.exact} == {right}
        life.forget()


def test_custom_messages_and_branch_summaries_are_archived(life: Life) -> None:
    """Custom messages and branch summaries are read, searched and deleted like other messages."""
    life.begin("look")
    life.say(call("a"), result("a"))
    point = last(life)
    life.say(assistant("no"))
    life.go(point, "It led nowhere.")
    life.inform("the door is open")
    life.say(assistant("yes"))
    life.end()
    _, holder = life.archive()
    assert "It led nowhere." in text_of(life.read(holder)[0])
    assert [hit.id for hit in life.search("the door is open") if hit.exact] == [holder]
    life.check()
    file = life.folder / "session.jsonl"
    assert b"the door is open" in file.read_bytes()
    life.go(None)
    life.prune(LATER)
    assert b"the door is open" not in file.read_bytes()
    life.check()


def test_message_shown_on_another_branch_is_not_deleted(life: Life) -> None:
    """Deleting an archive of the abandoned branch does not change the current conversation."""
    life.turn(*steps(1), answer="kept here")
    point = last(life)
    life.archive()
    life.go(point)
    before = life.transcript.session.messages
    life.prune(LATER)
    assert life.transcript.session.messages == before
    assert text_of(before[-1]) == "kept here"


def test_incremental_reader_knows_branches(life: Life) -> None:
    """Reading the file while it grows results in the same view as reading it once."""
    following = SessionArchives(life.folder)
    points: list[str | None] = [None]
    for number in range(8):
        life.turn(*steps(1, f"t{number}"))
        points.append(last(life))
        following.catch_up()
        if number % 2:
            life.archive()
        following.catch_up()
        life.go(points[(number * 5) % len(points)])
        new = [record.id for record in following.catch_up()]
        assert new == []
        shown = [(item.first, item.last, item.note) for item in following.view.items]
        assert shown == [(item.first, item.last, item.note) for item in life.ledger().view.items]
        assert following.records == life.ledger().records


@pytest.mark.parametrize("lost", [b'"type":"checkout"', b'"text":"answer 1"'])
def test_damaged_line_next_to_a_branch_is_handled_alike(life: Life, lost: bytes) -> None:
    """Root and worker agree. Without the checkout entry, later entries follow the previous line."""
    life.turn(*steps(1, "one"))
    point = last(life)
    life.turn(*steps(1, "two"))
    life.go(point)
    life.turn(*steps(1, "three"))
    life.transcript.close()
    life.spoil(lost, lost.upper())
    life.transcript = life.opened()
    shown = [(item.message, item.first, item.last) for item in life.transcript.session.view.items]
    assert [(item.message, item.first, item.last) for item in life.ledger().view.items] == shown
    assert text_of(life.transcript.session.messages[-1]) == "answer 3"


def test_summary_on_another_branch_names_the_deleted_archive(life: Life) -> None:
    """After a checkout, the compaction summary of the other branch shows the archive as deleted."""
    life.turn(*steps(2), asked="the copper valve")
    [holder] = life.archive()
    life.turn(*steps(1))
    life.compact(2)
    there = last(life)
    life.go(None)
    life.turn(*steps(1))
    life.prune(LATER)
    life.go(there)
    assert stubs_in(life.transcript.session.messages[0]) == {holder: stub_text("turn", holder, MARK)}
    life.check()


def phases(life: Life) -> tuple[str, dict[str, str]]:
    """Run a turn in phases, and leave its branch.

    Return the creation time of the first phase, and the last entry of each phase by holder.
    """
    life.begin("what of it?")
    ends: dict[str, str] = {}
    early = ""
    for number in range(5):
        life.say(*steps(1, f"needle{number}x", 60))
        for holder in life.archive(None):
            ends[holder] = last(life)
            early = early or later(life)
    life.go(None)
    life.turn(*steps(1))
    return early, ends


def test_prompt_of_a_deleted_phase_stays_on_another_branch(tmp_path: Path) -> None:
    """The prompt is still shown on the other branch, followed by the deleted phase's record."""
    life = Life(tmp_path / "agent", PROFILES["tight"])
    early, ends = phases(life)
    (first, between), (second, behind) = list(ends.items())[:2]
    life.prune(early)
    gone, there = Text(stub_text("phase", first, MARK)), life.ledger().records[second]
    for place, text in ((between, [gone]), (behind, [gone, Text(stub_text("phase", second, there.record))])):
        life.go(place)
        assert life.transcript.session.messages[0].content == (Text("what of it?"), *text)
    life.check()
    life.close()


def test_no_other_archive_contains_deleted_content(tmp_path: Path) -> None:
    """Pruning a phase removes its text from the session file and keeps the text of the next phase."""
    life = Life(tmp_path / "agent", PROFILES["tight"])
    early, _ = phases(life)
    life.prune(early)
    assert "needle0x" not in file(life)
    assert "needle1x" in file(life)
    life.close()


def test_tree_and_audit_show_deleted_archives(life: Life) -> None:
    """The tree and the audit show the deletion date instead of the archive's task."""
    life.turn(*steps(1), asked="the copper valve")
    [holder] = life.archive()

    def shown_rows() -> list[str]:
        rows = read_session_index(life.folder).rows()
        return [
            *(row.head.removeprefix(f"{holder}: ") for row in rows if row.type == "archive"),
            *(row.text for row in audit(life.transcript.path) if row.what == "archive"),
        ]

    assert shown_rows() == ["the copper valve"] * 2
    life.prune(LATER)
    assert shown_rows() == [MARK, f"deleted on {DELETED}"]
