"""A session is the fold of its entries, and its messages are always valid for a provider."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent_doubles import assert_valid
from orch_protocol.core.archives import Collapse
from orch_protocol.core.messages import (
    Image,
    Message,
    Reply,
    Text,
    ToolResult,
    ToolUse,
    Usage,
    assistant,
    text_of,
    user,
)
from orch_protocol.session.entries import (
    LEFT_BRANCH,
    ArchiveEntry,
    BranchSummary,
    Checkout,
    CompactionEntry,
    Custom,
    CustomMessage,
    Entry,
    Label,
    MessageEntry,
    ModelChange,
    SessionHeader,
    SessionInfo,
    ThinkingLevelChange,
    TurnEndEntry,
    TurnStartEntry,
)
from orch_worker.conversation.stubs import stub_text
from orch_worker.session.entry_codec import UnknownEntry
from orch_worker.session.session import HiddenEntry, SessionState

HEADER = SessionHeader(id="s", timestamp="t", cwd="/", agent="a")


def message_entry(message: Message, turn: str = "q1", id: str = "", after: str | None = "") -> dict[str, Any]:
    """Describe a message entry for `entries`."""
    return {"kind": MessageEntry, "message": message, "turn": turn, "id": id, "after": after}


def ended(turn: str = "q1", usage: Usage | None = None) -> dict[str, Any]:
    """Describe the end of a turn for `entries`."""
    return {"kind": TurnEndEntry, "turn": turn, "reply": Reply("a", turn, f"reply to {turn}", usage=usage or Usage())}


def restarted(turn: str, interrupted: str) -> dict[str, Any]:
    """Describe for `entries` the start of a turn after the turn `interrupted` was interrupted."""
    return {"kind": TurnStartEntry, "turn": turn, "interrupted": interrupted}


def move(to: str | None) -> dict[str, Any]:
    """Describe a move to the entry `to` for `entries`."""
    return {"kind": Checkout, "after": to}


class _Counted(list[Entry]):
    """Entries that count how often they are iterated."""

    count = 0

    def __iter__(self) -> Iterator[Entry]:
        self.count += 1
        return super().__iter__()


def entries(*described: dict[str, Any]) -> list[Entry]:
    """Return the described entries. Each follows the previous entry, unless `after` names another parent."""
    made: list[Entry] = []
    parent: str | None = None
    for number, fields in enumerate(described):
        kind, id, after = fields.pop("kind"), fields.pop("id", ""), fields.pop("after", "")
        made.append(kind(id=id or f"e{number}", parent_id=parent if after == "" else after, timestamp="t", **fields))
        parent = made[-1].id
    return made


def call(*ids: str) -> Message:
    """Return an assistant message that makes the calls `ids`."""
    return Message("assistant", (Text("let me see"), *(ToolUse(id, "read", {}) for id in ids)))


def result(*ids: str) -> Message:
    """Return a user message with the results of the calls `ids`."""
    return Message("user", tuple(ToolResult(id, (Text(f"result of {id}"),)) for id in ids))


def folded(*messages: Message) -> list[Message]:
    """Return the messages of a session whose entries are `messages`."""
    return list(SessionState.fold(entries(*map(message_entry, messages))).messages)


def outcomes(message: Message) -> list[tuple[str, bool]]:
    """Return the id and the error flag of each result in `message`."""
    return [(block.tool_use_id, block.is_error) for block in message.content if isinstance(block, ToolResult)]


class TestTurns:
    """Replies, usage and interrupted turns."""

    def test_empty_session_has_no_turn(self) -> None:
        session = SessionState.fold([])
        assert (session.messages, session.entries, session.leaf, session.header) == ((), [], None, None)
        assert (session.interrupted, session.turns, session.usage) == (None, 0, Usage())

    def test_header_is_not_an_entry(self) -> None:
        """The header is stored in the session and has no place in the tree."""
        session = SessionState.fold([HEADER, *entries(message_entry(user("hi")))])
        assert session.header == HEADER
        assert len(session.entries) == 1

    def test_finished_turns_are_found_by_query_id(self) -> None:
        """`reply` returns the reply of a finished turn, and the session sums the usage of finished turns."""
        usage = Usage(3, 4, cost_usd=0.5)
        session = SessionState.fold(
            entries(
                message_entry(user("a")),
                message_entry(assistant("b")),
                ended("q1", usage),
                message_entry(user("c"), "q2"),
                ended("q2", usage),
            )
        )
        reply = session.reply("q1")
        assert reply is not None
        assert reply.text == "reply to q1"
        assert session.reply("q3") is None
        assert (session.turns, session.usage, session.interrupted) == (2, usage + usage, None)

    def test_turn_without_end_is_interrupted(self) -> None:
        """`interrupted` is the query id of the last turn that has messages and no end."""
        session = SessionState.fold(
            entries(
                message_entry(user("a")), ended(), message_entry(user("b"), "q2"), message_entry(assistant("c"), "q2")
            )
        )
        assert session.interrupted == "q2"

    def test_interruption_is_reported_once(self) -> None:
        """A later turn start that names the interrupted turn clears the interruption."""
        settled = [message_entry(user("a")), restarted("q2", "q1")]
        assert SessionState.fold(entries(*map(dict, settled))).interrupted is None
        assert SessionState.fold(entries(*map(dict, settled), message_entry(user("b"), "q2"))).interrupted == "q2"
        assert (
            SessionState.fold(entries(*map(dict, settled), message_entry(user("b"), "q2"), ended("q2"))).interrupted
            is None
        )

    def test_finished_later_turn_settles_interruptions(self) -> None:
        """After a later turn ends, no earlier turn counts as interrupted."""
        session = SessionState.fold(entries(message_entry(user("a")), message_entry(user("b"), "q2"), ended("q2")))
        assert session.interrupted is None

    def test_only_its_own_end_or_notice_settles_an_interrupted_turn(self) -> None:
        """The end of another turn, or a start that names another turn, leaves the turn interrupted."""
        assert SessionState.fold(entries(message_entry(user("b"), "q2"), ended("q1"))).interrupted == "q2"
        assert SessionState.fold(entries(message_entry(user("b"), "q2"), restarted("q3", "q1"))).interrupted == "q2"

    def test_messages_after_the_reply_do_not_interrupt_the_turn(self) -> None:
        assert (
            SessionState.fold(entries(message_entry(user("a")), ended(), message_entry(assistant("b")))).interrupted
            is None
        )

    def test_seeded_history_is_not_an_interrupted_turn(self) -> None:
        """Messages without a query id are not an interrupted turn."""
        assert (
            SessionState.fold(entries(message_entry(user("a"), ""), message_entry(assistant("b"), ""))).interrupted
            is None
        )


class TestTree:
    """The tree of entries and the current branch."""

    def test_extension_and_unknown_entries_are_not_in_the_context(self) -> None:
        """Such entries keep their place in the tree."""
        session = SessionState.fold(
            [
                MessageEntry(id="1", parent_id=None, timestamp="t", message=user("a")),
                Custom(id="2", parent_id="1", timestamp="t", custom_type="x", data=[1]),
                UnknownEntry(id="3", parent_id="2", type="of a later version"),
                MessageEntry(id="4", parent_id="3", timestamp="t", message=assistant("b")),
            ]
        )
        assert session.messages == (user("a"), assistant("b"))
        assert (session.leaf, len(session.entries)) == ("4", 4)
        assert "3" in session.places
        assert "5" not in session.places

    def test_context_is_the_path_to_the_last_entry(self) -> None:
        """An entry whose parent is an earlier entry starts a branch, and the other branch leaves the context."""
        made = entries(
            message_entry(user("a"), id="1"),
            message_entry(assistant("b"), id="2"),
            message_entry(user("dead end")),
            message_entry(user("c"), id="3", after="2"),
        )
        session = SessionState.fold(made)
        assert session.messages == (user("a"), assistant("b"), user("c"))
        session.apply(MessageEntry(id="9", parent_id="3", timestamp="t", message=assistant("d")))
        assert session.messages == (user("a"), assistant("b"), user("c"), assistant("d"))
        anew = MessageEntry(id="10", parent_id=None, timestamp="t", message=user("anew"))
        assert SessionState.fold([*made, anew]).messages == (user("anew"),)

    def test_session_that_left_its_path_must_be_read_again(self) -> None:
        """A session that move back is marked `must_refold`, and `refolded` restores its messages from all entries."""
        made = entries(
            message_entry(user("a"), id="1"), message_entry(assistant("b"), id="2"), move("1"), message_entry(user("c"))
        )
        session = SessionState()
        for entry in made[:2]:
            session.apply(entry)
        assert not session.must_refold
        session.apply(made[2])
        assert session.must_refold
        session = session.refolded(made[:3])
        assert (session.must_refold, session.messages) == (False, (user("a"),))
        session.apply(made[3])
        assert session.messages == (Message("user", (Text("a"), Text("c"))),)

    def test_move_entry_sets_the_current_position(self) -> None:
        """A move can go to an earlier entry, to the beginning, or to an entry of another branch."""
        talk = [
            message_entry(user("a"), id="1"),
            message_entry(assistant("b"), id="2"),
            message_entry(user("c"), id="3"),
        ]
        assert SessionState.fold(entries(*map(dict, talk), move("2"))).messages == (user("a"), assistant("b"))
        anew = SessionState.fold(entries(*map(dict, talk), move(None)))
        assert (anew.messages, anew.was_queried, anew.leaf) == ((), False, "e3")
        forth = SessionState.fold(entries(*map(dict, talk), move("1"), message_entry(user("d")), move("3")))
        assert forth.messages == (user("a"), assistant("b"), user("c"))

    def test_branch_summary_is_sent_to_the_model_as_user_message(self) -> None:
        """The user message contains a heading and the summary."""
        back = {"kind": BranchSummary, "from_id": "2", "summary": "It was a dead end.", "after": "1"}
        session = SessionState.fold(
            entries(message_entry(user("a"), id="1"), message_entry(assistant("b"), id="2"), back)
        )
        assert text_of(session.messages[0]) == f"a\n\n{LEFT_BRANCH}\n\nIt was a dead end."

    def test_custom_messages_reach_the_model_and_metadata_does_not(self) -> None:
        """A hidden custom message is a user message for the model; labels, titles and settings are not sent."""
        session = SessionState.fold(
            entries(
                message_entry(user("a"), id="1"),
                message_entry(assistant("b")),
                {"kind": CustomMessage, "custom_type": "x", "content": (Text("note"),), "display": False},
                {"kind": Label, "target_id": "1", "label": "start"},
                {"kind": SessionInfo, "name": "chat"},
                {"kind": ModelChange, "provider": "p", "model_id": "m"},
                {"kind": ThinkingLevelChange, "thinking_level": "high"},
            )
        )
        assert session.messages == (user("a"), assistant("b"), user("note"))
        assert len(session.entries) == 7

    def test_turns_are_those_of_the_current_path(self) -> None:
        """Replies of other branches are not included, but the usage and the responses of all branches are counted."""
        usage = Usage(3, 4)
        talk = [message_entry(user("a"), id="1"), message_entry(assistant("b"), id="2"), ended("q1", usage)]
        more = [message_entry(user("c"), "q2"), message_entry(assistant("d"), "q2"), ended("q2", usage)]
        session = SessionState.fold(
            entries(*map(dict, talk), *map(dict, more), move("2"), message_entry(user("e"), "q3"))
        )
        assert (list(session.replies), session.turns, session.interrupted) == ([], 0, "q3")
        assert (session.usage, session.responses) == (usage + usage, 2)
        session = SessionState.fold(entries(*map(dict, talk), *map(dict, more), move("e2")))
        assert (list(session.replies), session.turns, session.interrupted) == (["q1"], 1, None)

    def test_going_back_into_a_turn_reports_no_interruption(self) -> None:
        """The user chose the position, so no turn counts as interrupted."""
        session = SessionState.fold(
            entries(message_entry(user("a"), id="1"), message_entry(assistant("b"), id="2"), ended(), move("2"))
        )
        assert session.interrupted is None

    def test_other_branches_are_not_kept_in_memory(self) -> None:
        """The session keeps only id, parent and turn of an entry on another branch."""
        talk = [
            message_entry(user("a"), id="1"),
            message_entry(assistant("b" * 100), id="2"),
            move("1"),
            message_entry(user("c")),
        ]
        session = SessionState.fold(entries(*talk))
        assert session.entries[1] == HiddenEntry("2", "1", "q1")

    def test_folding_a_hundred_thousand_entries_is_linear(self) -> None:
        """Folding 100,000 entries with 2,000 branches iterates over the entries twice and does not recurse."""
        count = 100_000
        made = [
            MessageEntry(id=str(at), parent_id=str(at - 1) if at else None, timestamp="t", message=Message("user", ()))
            for at in range(count)
        ]
        moves = [Checkout(id=f"c{at}", parent_id=str(at), timestamp="t") for at in range(0, count, 50)]
        passes = _Counted([*made, *moves])
        session = SessionState.fold(passes)
        assert (passes.count, len(session.entries), session.leaf) == (2, count + len(moves), moves[-1].id)
        assert sum(session.lineage.path(session.places["99950"])) == 99_951

    def test_entry_with_a_lost_parent_follows_the_previous_entry(self) -> None:
        """A parent whose line was damaged does not hide the messages before it."""
        session = SessionState.fold(entries(message_entry(user("a")), message_entry(assistant("b"), after="lost")))
        assert session.messages == (user("a"), assistant("b"))

    def test_parent_cycle_terminates(self) -> None:
        """Entries that name each other, or themselves, as parents do not cause an endless loop."""
        session = SessionState.fold(
            entries(
                message_entry(user("a"), id="1", after="2"),
                message_entry(user("b"), id="2", after="1"),
                message_entry(user("c"), id="1", after="1"),
            )
        )
        assert text_of(session.messages[0]) == "a\n\nc"


HOLDER = "abcdefabcdef"
TURN = (message_entry(user("a"), id="1"), message_entry(assistant("b"), id="2"), ended())


def archived(first: str, last: str, kind: Any = "turn", holder: str = HOLDER) -> dict[str, Any]:
    """Describe for `entries` the archive of the entries `first` to `last`."""
    stub = assistant(stub_text(kind, holder, "a receipt"))
    collapse = Collapse(holder, kind, "t", first, last, (user("a"), stub), (), "", {"receipt": {}})
    return {"kind": ArchiveEntry, "collapse": collapse, "id": holder}


class TestArchives:
    """Archived turns of a session."""

    def test_archived_turn_leaves_memory_but_stays_known(self) -> None:
        """The reply of an archived turn names the archive, and the turn and its responses are still counted."""
        session = SessionState.fold(entries(*map(dict, TURN), archived("1", "2"), message_entry(user("c"), turn="q2")))
        assert [text_of(message)[:15] for message in session.messages] == ["a", "[archived turn]", "c"]
        assert session.entries[:2] == [HiddenEntry("1", None, "q1"), HiddenEntry("2", "1", "q1")]
        assert session.replies["q1"].archived_to == HOLDER
        assert (session.responses, session.turns, session.interrupted) == (1, 1, "q2")

    @pytest.mark.parametrize("lost", ["1", "2"])
    def test_archived_turn_with_a_damaged_boundary_stays_archived(self, lost: str) -> None:
        """The parent id in the next line identifies the lost first or last entry."""
        described = [dict(each) for each in TURN if each.get("id") != lost]
        if lost == "1":
            described[0]["after"] = "1"
        else:
            described[1]["after"] = "2"
        session = SessionState.fold(entries(*described, archived("1", "2")))
        assert [text_of(message)[:15] for message in session.messages] == ["a", "[archived turn]"]
        assert session.replies["q1"].archived_to == HOLDER

    def test_archive_of_unknown_entries_is_ignored(self) -> None:
        session = SessionState.fold(entries(*map(dict, TURN), archived("7", "8")))
        assert session.messages == (user("a"), assistant("b"))
        assert session.replies["q1"].archived_to is None

    def test_branch_from_inside_an_archive_restores_its_messages(self) -> None:
        """An archive does not apply to a branch that starts inside the archived turn."""
        branch = message_entry(user("other"), turn="q2", after="1")
        session = SessionState.fold(entries(*map(dict, TURN), archived("1", "2"), branch))
        assert session.messages == (Message("user", (Text("a"), Text("other"))),)

    def test_merged_archive_keeps_only_its_position(self) -> None:
        """Only the position of the merged archives stays in memory, and a fold of all entries can go back to them."""
        other, era = HOLDER[::-1], "a" * 12
        more = (message_entry(user("c"), "q2", "3"), message_entry(assistant("d"), "q2", "4"), ended("q2"))
        described = [
            *map(dict, TURN),
            archived("1", "2"),
            *map(dict, more),
            archived("3", "4", holder=other),
            archived("1", "4", "era", era),
        ]
        session = SessionState.fold(entries(*map(dict, described)))
        assert [text_of(message)[:16] for message in session.messages] == ["a", "[archived turns]"]
        kept = {type(session.entries[session.places[id]]) for id in ("1", "2", "3", "4", HOLDER, other)}
        assert kept == {HiddenEntry}
        last = session.entries[-1]
        assert isinstance(last, ArchiveEntry)
        assert last.collapse.record == {}
        back = SessionState.fold(entries(*map(dict, described), message_entry(user("other"), "q3", after=HOLDER)))
        assert [text_of(message)[:15] for message in back.messages] == ["a", "[archived turn]", "other"]


class TestValidHistory:
    """The fold repairs incomplete histories. The file is not changed."""

    def test_complete_history_is_unchanged(self) -> None:
        history = [user("a"), call("1", "2"), result("1", "2"), assistant("b"), user("c"), assistant("d")]
        assert folded(*history) == history

    def test_missing_results_are_filled_before_the_next_prompt(self) -> None:
        """Each added result is an error which states that the process ended before the result."""
        messages = folded(user("a"), call("1", "2"))
        assert outcomes(messages[2]) == [("1", True), ("2", True)]
        assert "process ended before" in str(messages[2].content[0])
        messages = folded(user("a"), call("1", "2"), user("b"), assistant("c"))
        assert outcomes(messages[2]) == [("1", True), ("2", True)]
        assert (text_of(messages[2]), messages[3]) == ("b", assistant("c"))

    def test_recorded_results_are_kept_when_others_are_filled(self) -> None:
        """The recorded and the added results are in the order of the calls."""
        messages = folded(user("a"), call("1", "2", "3"), result("3"), result("2"))
        assert outcomes(messages[2]) == [("1", True), ("2", False), ("3", False)]
        assert len(messages) == 3

    def test_late_result_still_counts(self) -> None:
        """A result that is appended after the messages were read replaces the added error result."""
        session = SessionState.fold(
            entries(message_entry(user("a")), message_entry(call("1", "2")), message_entry(result("1")))
        )
        assert outcomes(session.messages[2]) == [("1", False), ("2", True)]
        session.apply(MessageEntry(id="x", parent_id=session.leaf, timestamp="t", message=result("2")))
        assert outcomes(session.messages[2]) == [("1", False), ("2", False)]

    def test_adjacent_messages_of_a_role_are_merged(self) -> None:
        assert folded(user("a"), user("b"), assistant("c")) == [
            Message("user", (Text("a"), Text("b"))),
            assistant("c"),
        ]
        assert folded(user("a"), assistant("b"), assistant("c"))[1] == Message("assistant", (Text("b"), Text("c")))

    def test_calls_in_adjacent_responses_are_all_answered(self) -> None:
        """The calls of the first of two adjacent responses get error results before the second response."""
        messages = folded(user("a"), call("1"), call("2"), result("2"))
        assert [message.role for message in messages] == ["user", "assistant", "user", "assistant", "user"]
        assert outcomes(messages[2]) == [("1", True)]
        assert outcomes(messages[4]) == [("2", False)]

    def test_result_without_its_call_becomes_text(self) -> None:
        """The content of a result without a call, or of a second result for a call, is kept as text and images."""
        picture = Image("image/png", "AA==")
        lost = Message("user", (ToolResult("1", (Text("found"), picture)),))
        (message,) = folded(lost)
        assert outcomes(message) == []
        assert Text("found") in message.content
        assert picture in message.content
        messages = folded(user("a"), call("1"), result("1"), result("1"))
        assert outcomes(messages[2]) == [("1", False)]
        assert text_of(messages[2]).endswith("result of 1")

    def test_history_starting_with_the_model_gets_a_user_message(self) -> None:
        """A user message is inserted before an assistant message that begins the conversation."""
        system = Message("system", (Text("be brief"),))
        messages = folded(system, assistant("b"))
        assert [message.role for message in messages] == ["system", "user", "assistant"]

    def test_empty_messages_are_left_out_of_the_context(self) -> None:
        assert folded(user("a"), Message("assistant", ()), assistant("b")) == [user("a"), assistant("b")]

    @given(st.data())
    def test_any_messages_form_a_valid_history(self, data: st.DataObject) -> None:
        """In any history, roles alternate and each call is followed by its result."""
        ids = st.sampled_from("123")
        blocks = st.one_of(
            st.just(Text("t")),
            st.builds(ToolUse, ids, st.just("read"), st.just({})),
            ids.map(lambda id: ToolResult(id, (Text("r"),))),
        )
        roles = {"user": (Text, ToolResult), "assistant": (Text, ToolUse)}
        messages = [
            Message(role, tuple(block for block in content if isinstance(block, roles[role])))
            for role, content in data.draw(
                st.lists(
                    st.tuples(st.sampled_from(["user", "assistant"]), st.lists(blocks, max_size=4, unique_by=repr)),
                    max_size=10,
                )
            )
        ]
        made = entries(*map(message_entry, messages))
        live = SessionState()
        for entry in made:
            live.apply(entry)
            assert_valid(live.messages)
            found = [message.role for message in live.messages]
            assert found == ["user", "assistant"] * (len(found) // 2) + ["user"] * (len(found) % 2)
        assert live.messages == SessionState.fold(made).messages

    def test_long_runs_take_linear_time(self) -> None:
        """Ten thousand prompts without an answer become one message."""
        session = SessionState.fold(entries(*(message_entry(user("x")) for _ in range(10_000))))
        assert len(session.messages[0].content) == 10_000


@pytest.mark.parametrize("turn", ["q1", "q2"])
def test_messages_are_a_snapshot(turn: str) -> None:
    """A returned tuple of messages does not change when an entry is applied."""
    session = SessionState.fold(entries(message_entry(user("a"), turn)))
    before = session.messages
    session.apply(MessageEntry(id="x", parent_id=session.leaf, timestamp="t", message=assistant("b"), turn=turn))
    assert before == (user("a"),)
    assert session.messages == (user("a"), assistant("b"))


class TestCompaction:
    """A summary in place of the beginning of a conversation."""

    def test_compaction_shows_summary_and_kept_messages(self) -> None:
        """The summary replaces the earlier messages in the context, and the entries keep them."""
        found = entries(
            message_entry(user("old")),
            message_entry(assistant("older")),
            message_entry(user("new")),
            message_entry(assistant("newer")),
        )
        summary = CompactionEntry(id="k", parent_id="e3", timestamp="t", summary="SUM", first_kept_entry_id="e2")
        session = SessionState.fold([HEADER, *found, summary])
        assert [message.role for message in session.messages] == ["user", "assistant"]
        assert "SUM" in text_of(session.messages[0])
        assert "old" not in text_of(session.messages[0]).split()
        assert len(session.entries) == 5

    def test_result_of_a_dropped_call_becomes_text(self) -> None:
        """The messages are valid if the first kept entry is a result whose call was compacted."""
        found = entries(
            message_entry(user("q")),
            message_entry(call("c")),
            message_entry(result("c")),
            message_entry(assistant("done")),
        )
        summary = CompactionEntry(id="k", parent_id="e3", timestamp="t", summary="SUM", first_kept_entry_id="e2")
        messages = SessionState.fold([HEADER, *found, summary]).messages
        assert_valid(messages)
        assert outcomes(messages[0]) == []
        assert messages[0].content[-1] == Text("result of c")
