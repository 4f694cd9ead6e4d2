"""A session is the fold of its entries, and its messages are always ones that a provider accepts."""

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
from orch_worker.session.session import LeftEntry, SessionState, UnknownEntry

HEADER = SessionHeader(id="s", timestamp="t", cwd="/", agent="a")


def said(message: Message, turn: str = "q1", id: str = "", after: str | None = "") -> dict[str, Any]:
    """Describe a message entry for `entries`."""
    return {"kind": MessageEntry, "message": message, "turn": turn, "id": id, "after": after}


def ended(turn: str = "q1", usage: Usage | None = None) -> dict[str, Any]:
    """Describe the end of a turn for `entries`."""
    return {"kind": TurnEndEntry, "turn": turn, "reply": Reply("a", turn, f"reply to {turn}", usage=usage or Usage())}


def restarted(turn: str, interrupted: str) -> dict[str, Any]:
    """Describe the start of a turn after one that was cut short, for `entries`."""
    return {"kind": TurnStartEntry, "turn": turn, "interrupted": interrupted}


def went(to: str | None) -> dict[str, Any]:
    """Describe a move to the entry `to`, for `entries`."""
    return {"kind": Checkout, "after": to}


class _Counted(list[Entry]):
    """Entries that count how often they were gone through."""

    count = 0

    def __iter__(self) -> Iterator[Entry]:
        self.count += 1
        return super().__iter__()


def entries(*described: dict[str, Any]) -> list[Entry]:
    """Return the entries described, each following the one before it unless it says `after` which."""
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
    """Return what a session makes of `messages`."""
    return list(SessionState.fold(entries(*map(said, messages))).messages)


def outcomes(message: Message) -> list[tuple[str, bool]]:
    """Return id and error flag of each result in `message`."""
    return [(block.tool_use_id, block.is_error) for block in message.content if isinstance(block, ToolResult)]


class TestTurns:
    """Replies, usage, and which turn was cut short."""

    def test_empty_session(self) -> None:
        """Nothing happened yet."""
        session = SessionState.fold([])
        assert (session.messages, session.entries, session.leaf, session.header) == ((), [], None, None)
        assert (session.interrupted, session.turns, session.usage) == (None, 0, Usage())

    def test_header_is_no_entry(self) -> None:
        """The header says whose session it is and takes no place in the tree."""
        session = SessionState.fold([HEADER, *entries(said(user("hi")))])
        assert session.header == HEADER
        assert len(session.entries) == 1

    def test_finished_turns(self) -> None:
        """Each reply is found by its query id; usage adds up."""
        usage = Usage(3, 4, cost_usd=0.5)
        session = SessionState.fold(
            entries(
                said(user("a")), said(assistant("b")), ended("q1", usage), said(user("c"), "q2"), ended("q2", usage)
            )
        )
        reply = session.reply("q1")
        assert reply is not None
        assert reply.text == "reply to q1"
        assert session.reply("q3") is None
        assert (session.turns, session.usage, session.interrupted) == (2, usage + usage, None)

    def test_turn_without_end_is_interrupted(self) -> None:
        """The last turn with messages and no end is named."""
        session = SessionState.fold(
            entries(said(user("a")), ended(), said(user("b"), "q2"), said(assistant("c"), "q2"))
        )
        assert session.interrupted == "q2"

    def test_interruption_is_told_once(self) -> None:
        """The start of the next turn that names the interrupted one settles it, and its own messages open a new one."""
        settled = [said(user("a")), restarted("q2", "q1")]
        assert SessionState.fold(entries(*map(dict, settled))).interrupted is None
        assert SessionState.fold(entries(*map(dict, settled), said(user("b"), "q2"))).interrupted == "q2"
        assert SessionState.fold(entries(*map(dict, settled), said(user("b"), "q2"), ended("q2"))).interrupted is None

    def test_later_turn_settles_an_interruption(self) -> None:
        """A later turn that ends leaves none interrupted, whatever became of the ones before."""
        session = SessionState.fold(entries(said(user("a")), said(user("b"), "q2"), ended("q2")))
        assert session.interrupted is None

    def test_only_its_own_end_or_notice_settles_a_turn(self) -> None:
        """The end of another turn, or a start that names another one, leaves the turn interrupted."""
        assert SessionState.fold(entries(said(user("b"), "q2"), ended("q1"))).interrupted == "q2"
        assert SessionState.fold(entries(said(user("b"), "q2"), restarted("q3", "q1"))).interrupted == "q2"

    def test_words_after_the_end_do_not_reopen_a_turn(self) -> None:
        """A message of a turn that has its reply interrupts nothing."""
        assert SessionState.fold(entries(said(user("a")), ended(), said(assistant("b")))).interrupted is None

    def test_seeded_history_is_no_turn(self) -> None:
        """Messages that belong to no query are not an interrupted turn."""
        assert SessionState.fold(entries(said(user("a"), ""), said(assistant("b"), ""))).interrupted is None


class TestTree:
    """Entries, parents, branches."""

    def test_extensions_entries_stay_out_of_the_context(self) -> None:
        """State of an extension and unknown entries hold their place in the tree and say nothing to the model."""
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

    def test_branch_leaves_the_other_one_out(self) -> None:
        """An entry that follows an earlier one begins a branch; the context is the path to the last entry."""
        made = entries(
            said(user("a"), id="1"),
            said(assistant("b"), id="2"),
            said(user("dead end")),
            said(user("c"), id="3", after="2"),
        )
        session = SessionState.fold(made)
        assert session.messages == (user("a"), assistant("b"), user("c"))
        session.apply(MessageEntry(id="9", parent_id="3", timestamp="t", message=assistant("d")))
        assert session.messages == (user("a"), assistant("b"), user("c"), assistant("d"))
        anew = MessageEntry(id="10", parent_id=None, timestamp="t", message=user("anew"))
        assert SessionState.fold([*made, anew]).messages == (user("anew"),)

    def test_who_goes_back_reads_again(self) -> None:
        """A session that leaves its path knows that it does not know what is shown, and learns it from all entries."""
        made = entries(said(user("a"), id="1"), said(assistant("b"), id="2"), went("1"), said(user("c")))
        session = SessionState()
        for entry in made[:2]:
            session.apply(entry)
        assert not session.hollow
        session.apply(made[2])
        assert session.hollow
        session = session.refolded(made[:3])
        assert (session.hollow, session.messages) == (False, (user("a"),))
        session.apply(made[3])
        assert session.messages == (Message("user", (Text("a"), Text("c"))),)

    def test_a_move_is_an_entry(self) -> None:
        """The last line is where the conversation is, whatever was said on other branches: also at the beginning."""
        talk = [said(user("a"), id="1"), said(assistant("b"), id="2"), said(user("c"), id="3")]
        assert SessionState.fold(entries(*map(dict, talk), went("2"))).messages == (user("a"), assistant("b"))
        anew = SessionState.fold(entries(*map(dict, talk), went(None)))
        assert (anew.messages, anew.asked, anew.leaf) == ((), False, "e3")
        forth = SessionState.fold(entries(*map(dict, talk), went("1"), said(user("d")), went("3")))
        assert forth.messages == (user("a"), assistant("b"), user("c"))

    def test_a_summary_of_the_branch_that_was_left_is_read_by_the_model(self) -> None:
        """As a message of the user's, which says what it is."""
        back = {"kind": BranchSummary, "from_id": "2", "summary": "It was a dead end.", "after": "1"}
        session = SessionState.fold(entries(said(user("a"), id="1"), said(assistant("b"), id="2"), back))
        assert text_of(session.messages[0]) == f"a\n\n{LEFT_BRANCH}\n\nIt was a dead end."

    def test_what_a_program_says_is_read_and_what_is_noted_is_not(self) -> None:
        """A custom message is a user's words to the model, shown to people or not; names and settings are silent."""
        session = SessionState.fold(
            entries(
                said(user("a"), id="1"),
                said(assistant("b")),
                {"kind": CustomMessage, "custom_type": "x", "content": (Text("note"),), "display": False},
                {"kind": Label, "target_id": "1", "label": "start"},
                {"kind": SessionInfo, "name": "chat"},
                {"kind": ModelChange, "provider": "p", "model_id": "m"},
                {"kind": ThinkingLevelChange, "thinking_level": "high"},
            )
        )
        assert session.messages == (user("a"), assistant("b"), user("note"))
        assert len(session.entries) == 7

    def test_turns_are_those_of_the_path(self) -> None:
        """A reply on another branch is not this one's; what it cost was spent, and what it took was said."""
        usage = Usage(3, 4)
        talk = [said(user("a"), id="1"), said(assistant("b"), id="2"), ended("q1", usage)]
        more = [said(user("c"), "q2"), said(assistant("d"), "q2"), ended("q2", usage)]
        session = SessionState.fold(entries(*map(dict, talk), *map(dict, more), went("2"), said(user("e"), "q3")))
        assert (list(session.replies), session.turns, session.interrupted) == ([], 0, "q3")
        assert (session.usage, session.responses) == (usage + usage, 2)
        session = SessionState.fold(entries(*map(dict, talk), *map(dict, more), went("e2")))
        assert (list(session.replies), session.turns, session.interrupted) == (["q1"], 1, None)

    def test_who_goes_back_into_a_turn_is_not_told_that_it_was_cut_short(self) -> None:
        """They chose the place."""
        session = SessionState.fold(entries(said(user("a"), id="1"), said(assistant("b"), id="2"), ended(), went("2")))
        assert session.interrupted is None

    def test_what_is_on_other_branches_is_not_kept(self) -> None:
        """Nothing of it but what it follows: however many branches there are, memory is that of the one shown."""
        talk = [said(user("a"), id="1"), said(assistant("b" * 100), id="2"), went("1"), said(user("c"))]
        session = SessionState.fold(entries(*talk))
        assert session.entries[1] == LeftEntry("2", "1", "q1")

    def test_a_hundred_thousand_entries_and_many_branches(self) -> None:
        """Neither depth nor branches make it slow: the file is gone through twice, and nothing recurses."""
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

    def test_entry_behind_a_lost_one_follows_what_is_there(self) -> None:
        """A parent whose line was damaged does not hide what came before it."""
        session = SessionState.fold(entries(said(user("a")), said(assistant("b"), after="lost")))
        assert session.messages == (user("a"), assistant("b"))

    def test_parent_cycle_ends(self) -> None:
        """Entries that claim to follow each other, or themselves, do not make the walk endless."""
        session = SessionState.fold(
            entries(
                said(user("a"), id="1", after="2"),
                said(user("b"), id="2", after="1"),
                said(user("c"), id="1", after="1"),
            )
        )
        assert text_of(session.messages[0]) == "a\n\nc"


HOLDER = "abcdefabcdef"
TURN = (said(user("a"), id="1"), said(assistant("b"), id="2"), ended())


def archived(first: str, last: str, kind: Any = "turn", holder: str = HOLDER) -> dict[str, Any]:
    """Describe the archiving of the entries `first` to `last`, for `entries`."""
    stub = assistant(stub_text(kind, holder, "a receipt"))
    collapse = Collapse(holder, kind, "t", first, last, (user("a"), stub), (), "", {"receipt": {}})
    return {"kind": ArchiveEntry, "collapse": collapse, "id": holder}


class TestArchives:
    """What went to a holder."""

    def test_a_turn_that_left_is_forgotten_and_known(self) -> None:
        """Its messages are not kept in memory; its reply says where it is, and its responses still count."""
        session = SessionState.fold(entries(*map(dict, TURN), archived("1", "2"), said(user("c"), turn="q2")))
        assert [text_of(message)[:15] for message in session.messages] == ["a", "[archived turn]", "c"]
        assert session.entries[:2] == [LeftEntry("1", None, "q1"), LeftEntry("2", "1", "q1")]
        assert session.replies["q1"].archived_to == HOLDER
        assert (session.responses, session.turns, session.interrupted) == (1, 1, "q2")

    @pytest.mark.parametrize("lost", ["1", "2"])
    def test_a_turn_whose_first_or_last_line_is_damaged_has_left(self, lost: str) -> None:
        """The line behind it knows its name, so what was archived does not come back."""
        described = [dict(each) for each in TURN if each.get("id") != lost]
        if lost == "1":
            described[0]["after"] = "1"
        else:
            described[1]["after"] = "2"
        session = SessionState.fold(entries(*described, archived("1", "2")))
        assert [text_of(message)[:15] for message in session.messages] == ["a", "[archived turn]"]
        assert session.replies["q1"].archived_to == HOLDER

    def test_what_cannot_be_found_stays(self) -> None:
        """An archive of entries that nobody knows changes nothing."""
        session = SessionState.fold(entries(*map(dict, TURN), archived("7", "8")))
        assert session.messages == (user("a"), assistant("b"))
        assert session.replies["q1"].archived_to is None

    def test_a_branch_from_inside_an_archive_shows_what_was_there(self) -> None:
        """What was archived later, on another branch, is shown whole again."""
        branch = said(user("other"), turn="q2", after="1")
        session = SessionState.fold(entries(*map(dict, TURN), archived("1", "2"), branch))
        assert session.messages == (Message("user", (Text("a"), Text("other"))),)

    def test_of_what_merged_nothing_is_kept_but_its_place(self) -> None:
        """An archive in an archive is forgotten like a message; going back to it reads it again."""
        other, era = HOLDER[::-1], "a" * 12
        more = (said(user("c"), "q2", "3"), said(assistant("d"), "q2", "4"), ended("q2"))
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
        assert kept == {LeftEntry}
        last = session.entries[-1]
        assert isinstance(last, ArchiveEntry)
        assert last.collapse.record == {}
        back = SessionState.fold(entries(*map(dict, described), said(user("other"), "q3", after=HOLDER)))
        assert [text_of(message)[:15] for message in back.messages] == ["a", "[archived turn]", "other"]


class TestValidHistory:
    """What is torn is mended, in the fold alone."""

    def test_whole_history_is_left_as_it_is(self) -> None:
        """A conversation with nothing missing comes back message by message."""
        history = [user("a"), call("1", "2"), result("1", "2"), assistant("b"), user("c"), assistant("d")]
        assert folded(*history) == history

    def test_missing_results_are_told(self) -> None:
        """Calls that the process did not live to answer get a result that says so, before the next prompt."""
        messages = folded(user("a"), call("1", "2"))
        assert outcomes(messages[2]) == [("1", True), ("2", True)]
        assert "process ended before" in str(messages[2].content[0])
        messages = folded(user("a"), call("1", "2"), user("b"), assistant("c"))
        assert outcomes(messages[2]) == [("1", True), ("2", True)]
        assert (text_of(messages[2]), messages[3]) == ("b", assistant("c"))

    def test_results_that_came_are_kept(self) -> None:
        """Where some results were recorded, in one message or several, the others alone are made up, in call order."""
        messages = folded(user("a"), call("1", "2", "3"), result("3"), result("2"))
        assert outcomes(messages[2]) == [("1", True), ("2", False), ("3", False)]
        assert len(messages) == 3

    def test_late_result_still_counts(self) -> None:
        """Asking for the messages between two results changes nothing."""
        session = SessionState.fold(entries(said(user("a")), said(call("1", "2")), said(result("1"))))
        assert outcomes(session.messages[2]) == [("1", False), ("2", True)]
        session.apply(MessageEntry(id="x", parent_id=session.leaf, timestamp="t", message=result("2")))
        assert outcomes(session.messages[2]) == [("1", False), ("2", False)]

    def test_neighbours_of_one_role_are_one_message(self) -> None:
        """A prompt that was never answered and the next one are one message; nobody's words are made up."""
        assert folded(user("a"), user("b"), assistant("c")) == [
            Message("user", (Text("a"), Text("b"))),
            assistant("c"),
        ]
        assert folded(user("a"), assistant("b"), assistant("c"))[1] == Message("assistant", (Text("b"), Text("c")))

    def test_calls_in_neighbouring_responses_are_all_answered(self) -> None:
        """Two responses in a row with calls: the first one's calls are answered before the second."""
        messages = folded(user("a"), call("1"), call("2"), result("2"))
        assert [message.role for message in messages] == ["user", "assistant", "user", "assistant", "user"]
        assert outcomes(messages[2]) == [("1", True)]
        assert outcomes(messages[4]) == [("2", False)]

    def test_result_without_its_call_becomes_text(self) -> None:
        """A result whose call is not on record, or answered already, keeps its content as plain blocks."""
        picture = Image("image/png", "AA==")
        lost = Message("user", (ToolResult("1", (Text("found"), picture)),))
        (message,) = folded(lost)
        assert outcomes(message) == []
        assert text_of(message).endswith("found")
        assert picture in message.content
        messages = folded(user("a"), call("1"), result("1"), result("1"))
        assert outcomes(messages[2]) == [("1", False)]
        assert text_of(messages[2]).endswith("result of 1")

    def test_lost_beginning_is_told(self) -> None:
        """A conversation whose first words are the model's gets a first message of the user's."""
        system = Message("system", (Text("be brief"),))
        messages = folded(system, assistant("b"))
        assert [message.role for message in messages] == ["system", "user", "assistant"]

    def test_empty_messages_are_left_out(self) -> None:
        """A message without content is on record and not in the context."""
        assert folded(user("a"), Message("assistant", ()), assistant("b")) == [user("a"), assistant("b")]

    @given(st.data())
    def test_any_messages_make_a_valid_history(self, data: st.DataObject) -> None:
        """Whatever messages a file holds, each call has its results right behind it, and roles alternate."""
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
        made = entries(*map(said, messages))
        live = SessionState()
        for entry in made:
            live.apply(entry)
            assert_valid(live.messages)
            found = [message.role for message in live.messages]
            assert found == ["user", "assistant"] * (len(found) // 2) + ["user"] * (len(found) % 2)
        assert live.messages == SessionState.fold(made).messages

    def test_long_runs_take_linear_time(self) -> None:
        """Ten thousand prompts without an answer are joined once, not once each."""
        session = SessionState.fold(entries(*(said(user("x")) for _ in range(10_000))))
        assert len(session.messages[0].content) == 10_000


@pytest.mark.parametrize("turn", ["q1", "q2"])
def test_messages_are_a_snapshot(turn: str) -> None:
    """Messages once returned do not change when the session does."""
    session = SessionState.fold(entries(said(user("a"), turn)))
    before = session.messages
    session.apply(MessageEntry(id="x", parent_id=session.leaf, timestamp="t", message=assistant("b"), turn=turn))
    assert before == (user("a"),)
    assert session.messages == (user("a"), assistant("b"))


class TestCompaction:
    """A summary in place of the beginning of a conversation."""

    def test_the_model_reads_the_summary_and_what_was_kept(self) -> None:
        """What was said before the first kept message is not shown any more; it is still among the entries."""
        told = entries(said(user("old")), said(assistant("older")), said(user("new")), said(assistant("newer")))
        summary = CompactionEntry(id="k", parent_id="e3", timestamp="t", summary="SUM", first_kept_entry_id="e2")
        session = SessionState.fold([HEADER, *told, summary])
        assert [message.role for message in session.messages] == ["user", "assistant"]
        assert "SUM" in text_of(session.messages[0])
        assert "old" not in text_of(session.messages[0]).split()
        assert len(session.entries) == 5

    def test_a_result_whose_call_was_not_kept_becomes_text(self) -> None:
        """What is kept is a conversation that providers accept, wherever the compaction cut it."""
        told = entries(said(user("q")), said(call("c")), said(result("c")), said(assistant("done")))
        summary = CompactionEntry(id="k", parent_id="e3", timestamp="t", summary="SUM", first_kept_entry_id="e2")
        assert_valid(SessionState.fold([HEADER, *told, summary]).messages)
