"""The outline of a session: which branches there are, where the conversation is, what has a name."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from orch_protocol.core.errors import AmbiguousRefError, EntryNotFoundError, ForeignFileError
from orch_protocol.core.messages import Message, Reply, ToolResult, ToolUse, assistant, user
from orch_protocol.session.entries import Checkout, Entry, Label, MessageEntry, ModelChange, ThinkingLevelChange
from orch_protocol.session.tree import AddMessage, SessionEdit, SetLabel, SetTitle
from orch_worker.session.session import SessionState
from orch_worker.session.session_index import SessionIndex, read_prompt, read_session_index
from orch_worker.session.transcript import Transcript, read_session

START, LAST = "aaaa0001", "aaaa0002"


def lines(*entries: Entry) -> list[bytes]:
    """Return `entries` as they stand in a file."""
    return [msgspec.json.encode(entry) for entry in entries]


def said(id: str, after: str | None, text: str = "", role: Any = "user") -> MessageEntry:
    """Return a message that says `text`, or its own id."""
    message = user(text or id) if role == "user" else assistant(text or id)
    return MessageEntry(id=id, parent_id=after, timestamp=f"t{id}", message=message)


def went(id: str, to: str | None) -> Checkout:
    """Return a move to the entry `to`."""
    return Checkout(id=id, parent_id=to, timestamp="")


def tips(outline: SessionIndex) -> list[tuple[str | None, str | None, int, bool]]:
    """Return end, beginning and length of each branch, and whether it is the current one."""
    return [(each.id, each.from_id, each.entries, each.current) for each in outline.branches()]


class TestAnswers:
    """Who answers where, and how much it thinks."""

    def test_by_the_path_to_an_entry(self) -> None:
        """The last that the agent has as its own there; one that answered a turn in its place is none of them."""
        common = {"timestamp": ""}
        outline = SessionIndex(
            lines(
                said("1", None),
                ModelChange(id="2", parent_id="1", provider="a", model_id="x", own=True, **common),
                ThinkingLevelChange(id="3", parent_id="2", thinking_level="low", **common),
                ModelChange(id="4", parent_id="3", provider="b", model_id="y", **common),
                said("5", "4"),
                ModelChange(id="6", parent_id="1", provider="c", model_id="", own=True, **common),
            )
        )
        found = {at: outline.answers(at) for at in (None, "1", "2", "5", "6")}
        assert found == {None: ("", ""), "1": ("", ""), "2": ("a:x", ""), "5": ("a:x", "low"), "6": ("c", "")}


class TestBranches:
    """The ways that a conversation went."""

    def test_nothing_yet(self) -> None:
        """There is no branch, and no leaf."""
        outline = SessionIndex()
        assert (outline.rows(), outline.branches(), outline.leaf) == ([], [], None)

    def test_one_way(self) -> None:
        """It is the current one, from the beginning to the end."""
        assert tips(SessionIndex(lines(said("1", None), said("2", "1")))) == [("2", None, 2, True)]

    def test_two_ways(self) -> None:
        """The one that was left begins where the current one parted from it, and says what was asked there last."""
        outline = SessionIndex(
            lines(
                said("1", None),
                said("2", "1", "the dead end"),
                said("3", "2", role="assistant"),
                went("4", "1"),
                said("5", "4"),
            )
        )
        assert tips(outline) == [("3", "1", 2, False), ("5", None, 3, True)]
        assert outline.branches()[0].head == "the dead end"
        assert [row.id for row in outline.rows() if row.on_path] == ["1", "4", "5"]

    def test_going_back_makes_no_branch_of_its_own(self) -> None:
        """Only what was said does: the place that was gone back to is the end of the current one."""
        outline = SessionIndex(lines(said("1", None), said("2", "1"), went("3", "1"), went("4", "2"), went("5", "1")))
        assert tips(outline) == [("1", None, 1, True), ("2", "1", 1, False)]

    def test_at_the_beginning(self) -> None:
        """Nothing was said yet on the current one."""
        outline = SessionIndex(lines(said("1", None), went("2", None)))
        assert tips(outline) == [(None, None, 0, True), ("1", None, 1, False)]

    def test_a_lost_entry_is_listed_as_lost(self) -> None:
        """It keeps its place, and nobody can go there."""
        outline = SessionIndex(lines(said("aa1", None), said("aa3", "aa2")))
        assert [(row.id, row.type) for row in outline.rows()] == [
            ("aa1", "message"),
            ("aa2", "lost"),
            ("aa3", "message"),
        ]
        with pytest.raises(EntryNotFoundError, match="aa2"):
            outline.find("aa2")

    @given(st.data())
    def test_it_is_the_tree_that_the_session_has(self, data: st.DataObject) -> None:
        """Whatever follows whatever: same places, same path, same leaf; and each branch ends where nothing follows."""
        made: list[Entry] = []
        for number in range(data.draw(st.integers(0, 12))):
            parents = st.sampled_from([None, "lost", *(each.id for each in made)])  # type: ignore[union-attr]
            kind = data.draw(st.sampled_from([said, said, went]))
            last = made[-1].id if made else None
            parent = last if data.draw(st.booleans()) else data.draw(parents)
            made.append(kind(f"e{number}", parent))
        outline, session = SessionIndex(lines(*made)), SessionState.fold(made)
        assert outline.lineage.places == session.places
        assert outline.lineage.parents == session.lineage.parents
        assert outline.leaf == session.leaf
        shown = [item.first for item in session.view.items]
        rows = outline.rows()
        assert shown == [row.id for row in rows if row.on_path and row.type in ("message", "lost")]
        branches = outline.branches()
        assert sum(branch.current for branch in branches) == bool(made)
        spoken = {row.id for row in rows if row.type in ("message", "lost")}
        assert {branch.id for branch in branches} <= spoken | {None}
        reached = set[str]()
        for branch in branches:
            place = session.places.get(branch.id or "", -1)
            reached |= {rows[each].id for each in session.lineage.back(place)}
        assert spoken <= reached, "something was said that no branch leads to"

    def test_a_hundred_thousand_entries(self) -> None:
        """Nothing recurses, and nothing is looked at once for each of many branches."""
        chain = [said(f"{at:08x}", f"{at - 1:08x}" if at else None, "x") for at in range(100_000)]
        moves = [went(f"ffff{at:04x}", chain[at * 90].id) for at in range(1_000)]
        outline = SessionIndex(lines(*chain, *moves))
        assert len(outline.branches()) == 2
        assert outline.rows()[-1].on_path


class TestNames:
    """Finding entries, and what is called how."""

    def test_by_id_beginning_and_label(self) -> None:
        """The first that fits: an id, a label, the beginning of one id. `root` is before all of them."""
        with_label = [said(START, None), said(LAST, START)]
        outline = SessionIndex(
            [*lines(*with_label), b'{"type":"label","id":"b1","parentId":null,"targetId":"aaaa0001","label":"go"}']
        )
        assert [outline.find(ref) for ref in (START, "aaaa0002", "go", "b1", "root")] == [
            START,
            LAST,
            START,
            "b1",
            None,
        ]
        with pytest.raises(AmbiguousRefError, match=f"{START}, {LAST}"):
            outline.find("aaaa")
        for nobody in ("", "a", "zz", "GO"):
            with pytest.raises(EntryNotFoundError, match="orch session tree"):
                outline.find(nobody)

    def test_labels_are_the_last_ones(self, tmp_path: Path) -> None:
        """One takes the place of the one before; without a text it is gone. So with the name of the session."""
        transcript = Transcript.open(tmp_path / "agent", agent="agent", cwd="/")
        entry = transcript.message(user("a")).id
        for number, label in enumerate(["one", "two", None, "three"]):
            transcript.change(SessionEdit(f"0000000{number}", SetLabel(entry, label)))
        transcript.change(SessionEdit("11111111", SetTitle("first")))
        transcript.change(SessionEdit("22222222", SetTitle("second")))
        outline = read_session_index(tmp_path / "agent")
        assert (outline.labels, outline.name) == ({entry: "three"}, "second")
        assert outline.row(entry).head == "a"
        transcript.close()


class TestFiles:
    """What it is read from."""

    def test_heads_say_what_each_entry_is(self, tmp_path: Path) -> None:
        """In one short line each, whatever it holds."""
        transcript = Transcript.open(tmp_path / "agent", agent="agent", cwd="/")
        transcript.message(user("look\n at  it " + "x" * 200), "q1")
        transcript.message(Message("assistant", (ToolUse("c", "read_file", {"path": "p"}),)), "q1")
        transcript.message(Message("user", (ToolResult("c", ()),)), "q1")
        transcript.turn_end("q1", Reply("agent", "q1", "done"))
        transcript.change(SessionEdit("11111111", AddMessage("clock", "It is noon.")))
        transcript.checkout(None, "Nothing came of it.")
        rows = read_session_index(tmp_path / "agent").rows()
        assert [(row.role, row.head) for row in rows[1:]] == [
            ("assistant", "read_file"),
            ("tool", "tool_result"),
            ("", "done"),
            ("user", "It is noon."),
            ("user", "Nothing came of it."),
        ]
        assert rows[0].head.startswith("look at it xxx")
        assert len(rows[0].head) == 80
        assert [row.on_path for row in rows] == [False] * 5 + [True]
        assert (rows[0].turn, rows[-1].turn) == ("q1", "")
        transcript.close()

    def test_none_and_foreign_ones(self, tmp_path: Path) -> None:
        """Where there is no file there is nothing; another program's is refused."""
        assert read_session_index(tmp_path).leaf is None
        (tmp_path / "session.jsonl").write_text('{"type":"other"}\n')
        with pytest.raises(ForeignFileError):
            read_session_index(tmp_path)

    @pytest.mark.parametrize("cut", [1, 20, 100])
    def test_what_is_not_whole_is_left_out(self, tmp_path: Path, cut: int) -> None:
        """As the session leaves it out, whatever is cut off or damaged."""
        transcript = Transcript.open(tmp_path / "agent", agent="agent", cwd="/")
        for number in range(6):
            transcript.message(user(f"message {number}"), "q1")
        transcript.close()
        path = tmp_path / "agent" / "session.jsonl"
        data = path.read_bytes()
        for changed in (data[:-cut], data.replace(b"message 3", b"MESSAGE 3"), data[:-cut] + b"\0" * cut):
            path.write_bytes(changed)
            outline, session = read_session_index(tmp_path / "agent"), read_session(tmp_path / "agent")
            assert (outline.lineage.places, outline.leaf) == (session.places, session.leaf)

    def test_questions(self, tmp_path: Path) -> None:
        """Of a question the words of who asked it, without what the framework says around them; of others nothing."""
        transcript = Transcript.open(tmp_path / "agent", agent="agent", cwd="/")
        first = transcript.message(user("Task: count\n\nQuery: How many?"), "q1").id
        answer = transcript.message(assistant("Two."), "q1").id
        results = transcript.message(Message("user", (ToolResult("c", ()),)), "q1").id
        folder = tmp_path / "agent"
        assert [read_prompt(folder, id) for id in (first, answer, results, "nobody")] == ["How many?", None, None, None]
        transcript.close()


class TestTurnNumbers:
    """Turns of the current conversation, by number."""

    def test_turn_begins_with_its_prompt_and_ends_with_its_last_entry(self) -> None:
        """Steering messages and tool results belong to the turn; the project's description to none."""
        rows = [
            ("aaaa0001", user("<project> a pump"), ""),
            ("aaaa0002", user("first"), "q1"),
            ("aaaa0003", user("and quickly"), "q1"),
            ("aaaa0004", assistant("done"), "q1"),
            ("aaaa0005", user("second"), "q2"),
        ]
        entries: list[MessageEntry] = []
        for id, message, turn in rows:
            parent = entries[-1].id if entries else None
            entries.append(MessageEntry(id=id, parent_id=parent, timestamp="", message=message, turn=turn))
        outline = SessionIndex(lines(*entries))
        assert outline.turns() == [("aaaa0002", "aaaa0004"), ("aaaa0005", "aaaa0005")]
        assert outline.find("1") == outline.find("turn:-2") == "aaaa0004"
        assert outline.find("1", prompt=True) == "aaaa0002"

    def test_messages_without_a_turn_id_begin_a_turn_each(self) -> None:
        """So it is in conversations of other programs."""
        entries = [said("aaaa0001", None), said("aaaa0002", "aaaa0001", role="assistant"), said("aaaa0003", "aaaa0002")]
        assert SessionIndex(lines(*entries)).turns() == [("aaaa0001", "aaaa0002"), ("aaaa0003", "aaaa0003")]

    def test_turns_of_other_branches_have_no_number(self) -> None:
        """Numbers count the path to the last entry."""
        entries = [said("aaaa0001", None), said("aaaa0002", "aaaa0001"), went("aaaa0003", "aaaa0001")]
        outline = SessionIndex(lines(*entries, said("aaaa0004", "aaaa0003")))
        assert [first for first, _ in outline.turns()] == ["aaaa0001", "aaaa0004"]
        with pytest.raises(EntryNotFoundError, match="no turn 3: the conversation has 2 turns"):
            outline.find("3")

    def test_labels_and_ids_come_before_turn_numbers(self) -> None:
        """A label "1" is found; longer runs of digits are prefixes of ids."""
        label = Label(id="bbbb0001", parent_id="12345678", timestamp="", target_id="12345678", label="1")
        outline = SessionIndex(lines(said("12345678", None), said("aaaa0002", "12345678"), label))
        assert outline.find("1") == outline.find("1234") == "12345678"
        assert outline.find("turn:1") == "12345678"
