"""Archives of a conversation that goes back: of each branch what it said, and nothing of another one."""

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
    """Return the last entry."""
    return life.transcript.session.leaf or ""


def stubs(life: Life) -> list[str]:
    """Return the holders whose stubs the conversation shows."""
    return [holder for message in life.transcript.session.messages for holder in holders_in(message)]


def test_what_was_archived_before_the_branch_point_stays_a_stub(life: Life) -> None:
    """And what was archived behind it is there again, word for word; its holder still has it too."""
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
    said = life.transcript.session.messages
    assert [text_of(message) for message in said[-6:]] == ["ask 2", "", "", "", "", "the second"]
    assert [len(life.read(holder)) for holder in late] == [6, 6]
    assert life.read(late[0])[-1] == assistant("the second")


def test_going_back_to_a_branch_shows_its_stubs(life: Life) -> None:
    """As they were when it was left."""
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


def test_a_turn_that_was_gone_back_into_is_archived_without_its_dead_end(life: Life) -> None:
    """The lines of a dead end stand between those of the turn, and are not the holder's."""
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


def test_an_era_has_nothing_of_a_dead_end_between_its_turns(tmp_path: Path) -> None:
    """Nor of an archive that was made there."""
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
    """Whichever branch the conversation is on, also by a root that comes later."""
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


def test_what_a_program_said_and_what_came_of_a_branch_is_archived_too(life: Life) -> None:
    """As any message: nothing that the model was shown is lost."""
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


def test_a_message_that_another_branch_shows_is_not_deleted_while_it_is_shown(life: Life) -> None:
    """Deleting an archive of the branch that was left takes nothing from the conversation that goes on."""
    life.turn(*steps(1), answer="kept here")
    point = last(life)
    life.archive()
    life.go(point)
    before = life.transcript.session.messages
    life.prune(LATER)
    assert life.transcript.session.messages == before
    assert text_of(before[-1]) == "kept here"


def test_a_move_that_is_read_as_it_is_made(life: Life) -> None:
    """A ledger that follows the file line by line knows the branches as one that reads all of it."""
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
def test_a_damaged_line_beside_a_branch(life: Life, lost: bytes) -> None:
    """Both sides still agree on what is left: what followed a lost move follows what stands before it in the file."""
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


def test_a_summary_on_another_branch_says_what_was_deleted_beside_it(life: Life) -> None:
    """Its stub is no archive that could still be asked."""
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
    """Live through a turn in phases, and go away from it. Return when the first was made, and for the first two
    phases what stood behind each."""
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


def test_what_a_phase_was_asked_stays_on_another_branch_when_the_phase_goes(tmp_path: Path) -> None:
    """It is a message that nobody archived. Of the phase it is said that it is deleted."""
    life = Life(tmp_path / "agent", PROFILES["tight"])
    early, ends = phases(life)
    (first, between), (second, behind) = list(ends.items())[:2]
    life.prune(early)
    gone, there = Text(stub_text("phase", first, MARK)), life.ledger().records[second]
    for place, said in ((between, [gone]), (behind, [gone, Text(stub_text("phase", second, there.record))])):
        life.go(place)
        assert life.transcript.session.messages[0].content == (Text("what of it?"), *said)
    life.check()
    life.close()


def test_no_other_archive_tells_what_was_deleted(tmp_path: Path) -> None:
    """As the next phase of the same turn does, whose stub stands beside it."""
    life = Life(tmp_path / "agent", PROFILES["tight"])
    early, _ = phases(life)
    life.prune(early)
    assert "needle0x" not in file(life)
    assert "needle1x" in file(life)
    life.close()


def test_tree_and_audit_say_which_archives_are_deleted(life: Life) -> None:
    """Where else they say what one is about."""
    life.turn(*steps(1), asked="the copper valve")
    [holder] = life.archive()

    def said() -> list[str]:
        rows = read_session_index(life.folder).rows()
        return [
            *(row.head.removeprefix(f"{holder}: ") for row in rows if row.type == "archive"),
            *(row.text for row in audit(life.transcript.path) if row.what == "archive"),
        ]

    assert said() == ["the copper valve"] * 2
    life.prune(LATER)
    assert said() == [MARK, f"deleted on {DELETED}"]
