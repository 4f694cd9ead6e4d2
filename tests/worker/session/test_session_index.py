"""The index of a session file: branches, the current position, labels and turn numbers."""

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
from orch_worker.session.session_reader import read_session
from orch_worker.session.transcript import Transcript

START, LAST = "aaaa0001", "aaaa0002"


def lines(*entries: Entry) -> list[bytes]:
    """Return the lines of `entries` in a file."""
    return [msgspec.json.encode(entry) for entry in entries]


def message_line(id: str, after: str | None, text: str = "", role: Any = "user") -> MessageEntry:
    """Return a message with the text `text`, or with its id as the text."""
    message = user(text or id) if role == "user" else assistant(text or id)
    return MessageEntry(id=id, parent_id=after, timestamp=f"t{id}", message=message)


def move(id: str, to: str | None) -> Checkout:
    """Return a move to the entry `to`."""
    return Checkout(id=id, parent_id=to, timestamp="")


def tips(outline: SessionIndex) -> list[tuple[str | None, str | None, int, bool]]:
    """Return the end, the fork point and the length of each branch, and whether the branch is current."""
    return [(each.id, each.from_id, each.entries, each.current) for each in outline.branches()]


class TestAnswers:
    """The model and the thinking level at an entry."""

    def test_last_answer_is_found_on_the_path_to_an_entry(self) -> None:
        """A model change counts only if it is marked `own`, and changes on other branches do not count."""
        common = {"timestamp": ""}
        outline = SessionIndex(
            lines(
                message_line("1", None),
                ModelChange(id="2", parent_id="1", provider="a", model_id="x", own=True, **common),
                ThinkingLevelChange(id="3", parent_id="2", thinking_level="low", **common),
                ModelChange(id="4", parent_id="3", provider="b", model_id="y", **common),
                message_line("5", "4"),
                ModelChange(id="6", parent_id="1", provider="c", model_id="", own=True, **common),
            )
        )
        found = {at: outline.model_at(at) for at in (None, "1", "2", "5", "6")}
        assert found == {None: ("", ""), "1": ("", ""), "2": ("a:x", ""), "5": ("a:x", "low"), "6": ("c", "")}


class TestBranches:
    def test_empty_session_has_no_branches(self) -> None:
        outline = SessionIndex()
        assert (outline.rows(), outline.branches(), outline.leaf) == ([], [], None)

    def test_linear_session_has_one_current_branch(self) -> None:
        """The branch begins at the first entry and ends at the last entry."""
        assert tips(SessionIndex(lines(message_line("1", None), message_line("2", "1")))) == [("2", None, 2, True)]

    def test_two_branches_show_fork_point_and_last_question(self) -> None:
        """The branch that is not current has a fork point, and its heading is its last question."""
        outline = SessionIndex(
            lines(
                message_line("1", None),
                message_line("2", "1", "the dead end"),
                message_line("3", "2", role="assistant"),
                move("4", "1"),
                message_line("5", "4"),
            )
        )
        assert tips(outline) == [("3", "1", 2, False), ("5", None, 3, True)]
        assert outline.branches()[0].head == "the dead end"
        assert [row.id for row in outline.rows() if row.on_path] == ["1", "4", "5"]

    def test_going_back_alone_creates_no_branch(self) -> None:
        """The current branch ends at the target of the last move."""
        outline = SessionIndex(
            lines(message_line("1", None), message_line("2", "1"), move("3", "1"), move("4", "2"), move("5", "1"))
        )
        assert tips(outline) == [("1", None, 1, True), ("2", "1", 1, False)]

    def test_current_branch_at_the_root_is_empty(self) -> None:
        """After going back to the beginning, the current branch has no entries."""
        outline = SessionIndex(lines(message_line("1", None), move("2", None)))
        assert tips(outline) == [(None, None, 0, True), ("1", None, 1, False)]

    def test_lost_entry_is_listed_and_cannot_be_a_target(self) -> None:
        """The parent of an entry is listed with the type `lost` if its line is missing."""
        outline = SessionIndex(lines(message_line("aa1", None), message_line("aa3", "aa2")))
        assert [(row.id, row.type) for row in outline.rows()] == [
            ("aa1", "message"),
            ("aa2", "lost"),
            ("aa3", "message"),
        ]
        with pytest.raises(EntryNotFoundError, match="aa2"):
            outline.find("aa2")

    @given(st.data())
    def test_branches_match_the_session_tree(self, data: st.DataObject) -> None:
        """For any entries, index and session have the same positions, parents, path and leaf."""
        made: list[Entry] = []
        for number in range(data.draw(st.integers(0, 12))):
            parents = st.sampled_from([None, "lost", *(each.id for each in made)])  # type: ignore[union-attr]
            kind = data.draw(st.sampled_from([message_line, message_line, move]))
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
            reached |= {rows[each].id for each in session.lineage.path_to_root(place)}
        assert spoken <= reached, "something was said that no branch leads to"

    def test_listing_branches_of_a_hundred_thousand_entries_is_linear(self) -> None:
        """Listing does not recurse, and does not visit an entry once for each branch."""
        chain = [message_line(f"{at:08x}", f"{at - 1:08x}" if at else None, "x") for at in range(100_000)]
        moves = [move(f"ffff{at:04x}", chain[at * 90].id) for at in range(1_000)]
        outline = SessionIndex(lines(*chain, *moves))
        assert len(outline.branches()) == 2
        assert outline.rows()[-1].on_path


class TestNames:
    """Labels, titles, and references to entries."""

    def test_entries_resolve_by_id_label_and_prefix(self) -> None:
        """`find` accepts ids, labels, unique prefixes and `root`."""
        with_label = [message_line(START, None), message_line(LAST, START)]
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
        for unknown in ("", "a", "zz", "GO"):
            with pytest.raises(EntryNotFoundError, match="orch session tree"):
                outline.find(unknown)

    def test_latest_label_and_session_name_apply(self, tmp_path: Path) -> None:
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
    """Reading the index from a session file."""

    def test_heads_describe_each_entry_in_one_line(self, tmp_path: Path) -> None:
        """The heading of an entry is one line of at most 80 characters, for entries of each kind."""
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

    def test_missing_file_is_empty_and_foreign_file_is_refused(self, tmp_path: Path) -> None:
        assert read_session_index(tmp_path).leaf is None
        (tmp_path / "session.jsonl").write_text('{"type":"other"}\n')
        with pytest.raises(ForeignFileError):
            read_session_index(tmp_path)

    @pytest.mark.parametrize("cut", [1, 20, 100])
    def test_damaged_and_torn_lines_are_left_out(self, tmp_path: Path, cut: int) -> None:
        """The index of a damaged file has the same positions and the same leaf as the session."""
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

    def test_question_is_shown_without_framework_text(self, tmp_path: Path) -> None:
        """`read_prompt` returns the text of the user without framework text, and None for other entries."""
        transcript = Transcript.open(tmp_path / "agent", agent="agent", cwd="/")
        first = transcript.message(user("Task: count\n\nQuery: How many?"), "q1").id
        answer = transcript.message(assistant("Two."), "q1").id
        results = transcript.message(Message("user", (ToolResult("c", ()),)), "q1").id
        folder = tmp_path / "agent"
        assert [read_prompt(folder, id) for id in (first, answer, results, "nobody")] == ["How many?", None, None, None]
        transcript.close()


class TestTurnNumbers:
    """Numbers of the turns in the current branch."""

    def test_turn_begins_with_its_prompt_and_ends_with_its_last_entry(self) -> None:
        """A steering message belongs to its turn; the project description belongs to no turn."""
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
        """A user message without a turn id begins a turn, as in conversations of other programs."""
        entries = [
            message_line("aaaa0001", None),
            message_line("aaaa0002", "aaaa0001", role="assistant"),
            message_line("aaaa0003", "aaaa0002"),
        ]
        assert SessionIndex(lines(*entries)).turns() == [("aaaa0001", "aaaa0002"), ("aaaa0003", "aaaa0003")]

    def test_turns_of_other_branches_have_no_number(self) -> None:
        """Turn numbers count the turns on the path to the last entry."""
        entries = [message_line("aaaa0001", None), message_line("aaaa0002", "aaaa0001"), move("aaaa0003", "aaaa0001")]
        outline = SessionIndex(lines(*entries, message_line("aaaa0004", "aaaa0003")))
        assert [first for first, _ in outline.turns()] == ["aaaa0001", "aaaa0004"]
        with pytest.raises(EntryNotFoundError, match="no turn 3: the conversation has 2 turns"):
            outline.find("3")

    def test_labels_and_ids_come_before_turn_numbers(self) -> None:
        """A label "1" has priority over the turn 1, and a longer number is a prefix of an id."""
        label = Label(id="bbbb0001", parent_id="12345678", timestamp="", target_id="12345678", label="1")
        outline = SessionIndex(lines(message_line("12345678", None), message_line("aaaa0002", "12345678"), label))
        assert outline.find("1") == outline.find("1234") == "12345678"
        assert outline.find("turn:1") == "12345678"
