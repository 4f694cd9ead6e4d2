"""A transcript: what the session holds is what the file says, whatever happened in between."""

from __future__ import annotations

import errno
import json
import re
import tempfile
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from orch_protocol.core.errors import ForeignFileError, LockedError, StoreError
from orch_protocol.core.messages import (
    Message,
    Opaque,
    Reply,
    Text,
    ToolResult,
    ToolUse,
    Usage,
    assistant,
    text_of,
    user,
)
from orch_protocol.session.entries import Custom, MessageEntry
from orch_worker.conversation.history import valid_conversation, without_lost
from orch_worker.session.log.append_log import AppendLog
from orch_worker.session.session import SessionState
from orch_worker.session.transcript import Transcript, read_last_turn, read_session, read_usage


def opened(folder: Path, agent: str = "agent") -> Transcript:
    """Open the transcript in `folder`."""
    return Transcript.open(folder, agent=agent, cwd="/somewhere")


def reply(query_id: str, text: str = "done") -> Reply:
    """Return a reply to `query_id`."""
    return Reply("agent", query_id, text, usage=Usage(1, 2, cost_usd=0.25), steps=1)


def reply_to(folder: Path, query_id: str) -> Reply | None:
    """Return the reply to `query_id` if that is the last turn on record and finished."""
    last = read_last_turn(folder)
    return last.reply if last is not None and last.query_id == query_id else None


def state(session: SessionState) -> dict[str, Any]:
    """Return all that a session says of itself."""
    return {
        "header": session.header,
        "entries": session.entries,
        "messages": session.messages,
        "replies": session.replies,
        "interrupted": session.interrupted,
        "usage": session.usage,
        "turns": session.turns,
        "leaf": session.leaf,
    }


def test_turn_is_on_disk_at_once(transcript: Transcript, folder: Path) -> None:
    """Each message and the reply can be read by others as soon as they are recorded."""
    entry = transcript.message(user("hi"), "q1")
    assert read_session(folder).messages == (user("hi"),)
    assert read_session(folder).interrupted == "q1"
    assert reply_to(folder, "q1") is None
    transcript.message(assistant("ho"), "q1")
    transcript.turn_end("q1", reply("q1"))
    assert reply_to(folder, "q1") == reply("q1")
    assert state(read_session(folder)) == state(transcript.session)
    assert transcript.session.entries[0] == entry


def test_file_has_the_shape_of_pi(transcript: Transcript) -> None:
    """The header names version and folder; each entry has type, id, parentId and a UTC timestamp in milliseconds."""
    transcript.message(user("hi"), "q1")
    transcript.turn_end("q1", reply("q1"))
    header, message, end = (json.loads(line) for line in transcript.path.read_text().splitlines())
    assert {key: header[key] for key in ("type", "version", "cwd", "agent")} == {
        "type": "session",
        "version": 3,
        "cwd": "/somewhere",
        "agent": "agent",
    }
    assert (message["type"], message["parentId"], message["message"]["role"]) == ("message", None, "user")
    assert (end["type"], end["parentId"]) == ("turn_end", message["id"])
    for line in (header, message, end):
        assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z", line["timestamp"])
    assert re.fullmatch("[0-9a-f]{8}", message["id"])


def test_reopening_goes_on_where_it_stopped(folder: Path) -> None:
    """A reopened transcript holds the same state and appends to the same tree."""
    first = opened(folder)
    first.message(user("a"), "q1")
    first.turn_end("q1", reply("q1"))
    before = state(first.session)
    first.close()
    second = opened(folder)
    assert state(second.session) == before
    assert second.repaired == ""
    second.message(user("b"), "q2")
    second.close()
    assert len(read_session(folder).messages[0].content) == 2


def test_interrupted_turn_is_named_and_settled(folder: Path) -> None:
    """After a death in the middle of a turn the session names it, until the next turn has said so."""
    first = opened(folder)
    first.message(user("a"), "q1")
    first.message(Message("assistant", (ToolUse("1", "shell", {"command": "make"}),)), "q1")
    first.close()
    second = opened(folder)
    assert second.session.interrupted == "q1"
    second.turn_start("q2", "q1")
    assert second.session.interrupted is None
    second.message(user("b"), "q2")
    result = second.session.messages[2].content[0]
    assert isinstance(result, ToolResult)
    assert result.is_error
    second.close()
    assert state(read_session(folder)) == state(second.session)


def test_seed_is_one_append(transcript: Transcript, folder: Path) -> None:
    """A history is recorded whole, belongs to no turn, and only into an empty transcript."""
    history = [user("a"), assistant("b"), user("c"), assistant("d")]
    transcript.seed(history)
    assert transcript.session.messages == tuple(history)
    assert transcript.session.interrupted is None
    lines = transcript.path.read_bytes().splitlines()
    assert [b'"m":1' in line for line in lines] == [False, True, True, True, False]
    with pytest.raises(StoreError, match="holds 4 entries"):
        transcript.seed(history)
    assert state(read_session(folder)) == state(transcript.session)


def test_half_a_seed_is_no_seed(folder: Path) -> None:
    """A death while the history was written leaves an empty transcript, to be seeded anew."""
    first = opened(folder)
    first.seed([user("a"), assistant("b")])
    first.close()
    data = first.path.read_bytes()
    first.path.write_bytes(data[: data.rindex(b"\n", 0, -1) + 1])
    second = opened(folder)
    assert second.session.entries == []
    assert "unfinished write at the end, kept in session.jsonl.torn-1" in second.repaired
    second.seed([user("a"), assistant("b")])
    second.close()


def test_several_entries_in_one_write(transcript: Transcript, folder: Path) -> None:
    """Entries made by the caller are recorded together."""
    transcript.append(
        Custom(id="1", parent_id=None, timestamp="t", custom_type="x", data={"a": [1, None]}),
        MessageEntry(id="2", parent_id="1", timestamp="t", message=user("hi")),
        sync=True,
    )
    assert transcript.log.dirty == 0
    assert state(read_session(folder)) == state(transcript.session)


def test_unknown_entries_are_kept(folder: Path) -> None:
    """Entries of a newer version, or of pi's other types, stay in the file and in the tree and disturb nothing."""
    first = opened(folder)
    parent = first.message(user("a"), "q1").id
    first.log.append(
        b'{"type":"label","id":"l1","parentId":"%b","timestamp":"t","targetId":"x"}' % parent.encode(),
        b'{"type":"message","id":"l2","parentId":"l1","timestamp":"t","message":{"role":"tool","content":[]}}',
        b'{"type":"note without id"}',
        b'{"type":"message","id":"l3","parentId":"l2","timestamp":"t","message":{"role":"assistant",'
        b'"content":[{"type":"text","text":"b","later":1}]}}',
    )
    first.close()
    data = first.path.read_bytes()
    second = opened(folder)
    assert second.session.messages == (user("a"), assistant("b"))
    assert second.repaired == ""
    second.close()
    assert second.path.read_bytes() == data


def test_damage_inside_is_reported(folder: Path) -> None:
    """A damaged line is skipped, said, and hides nothing else."""
    first = opened(folder)
    for text in "abc":
        first.message(user(text), "q1")
    first.close()
    data = first.path.read_bytes().replace(b'"text":"b"', b'"text":"x"')
    first.path.write_bytes(data)
    second = opened(folder)
    assert text_of(second.session.messages[0]) == "a\n\nc"
    assert second.repaired == f"{first.path}: line 3: its checksum does not match"
    second.close()
    assert first.path.read_bytes() == data


def test_text_no_file_can_carry_is_replaced(transcript: Transcript, folder: Path) -> None:
    """Lone surrogates become U+FFFD, in memory as on disk; line separators and NULs pass through."""
    odd = "a\ud800b\u2028\u0085\0\n"
    entry = transcript.message(Message("user", (Text(odd), Opaque("p", {"k\udc00": [odd]}))), "q")
    block = entry.message.content[0]
    assert isinstance(block, Text)
    assert block.text == "a\N{REPLACEMENT CHARACTER}b\u2028\u0085\0\n"
    assert state(read_session(folder)) == state(transcript.session)


@pytest.mark.parametrize("value", [float("nan"), float("inf"), 2**70, (1, 2), b"bytes", {1: 2}])
def test_odd_values_are_in_memory_as_on_disk(transcript: Transcript, folder: Path, value: Any) -> None:
    """Values that JSON changes are changed in memory as well, so that a revived agent sees what the first one saw."""
    transcript.message(Message("assistant", (ToolUse("1", "t", {"v": value}),)), "q")
    assert state(read_session(folder)) == state(transcript.session)


def test_what_cannot_be_recorded_is_refused(transcript: Transcript, folder: Path) -> None:
    """An entry that could not be read again is a StoreError, and leaves no trace."""
    before = transcript.path.read_bytes()
    deep: list[Any] = []
    for _ in range(50_000):
        deep = [deep]
    for value in (deep, object(), {"x": {1, object()}}):
        with pytest.raises(StoreError, match="cannot record"):
            transcript.message(Message("assistant", (ToolUse("1", "t", {"v": value}),)), "q")
    with pytest.raises(StoreError, match="cannot record"):
        transcript.turn_end("q", Reply("a", "q", "x", usage=Usage(cost_usd=float("nan"))))
    assert transcript.path.read_bytes() == before
    assert transcript.session.entries == []
    transcript.message(user("fine"), "q")
    assert len(read_session(folder).entries) == 1


def test_failed_append_leaves_the_session_alone(
    transcript: Transcript, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With a full disk nothing is applied; with room again the turn goes on."""
    transcript.message(user("a"), "q1")
    before = state(transcript.session)

    def full(*_: object) -> int:
        raise OSError(errno.ENOSPC, "no space")

    with monkeypatch.context() as patch:
        patch.setattr(AppendLog, "_write", staticmethod(full))
        with pytest.raises(StoreError, match="disk full"):
            transcript.message(assistant("b"), "q1")
    assert state(transcript.session) == before
    transcript.message(assistant("c"), "q1")
    assert state(read_session(folder)) == state(transcript.session)


def test_second_owner_is_refused(transcript: Transcript, folder: Path) -> None:
    """An open transcript cannot be opened again; reading takes no lock; closing frees it."""
    with pytest.raises(LockedError, match=str(folder)):
        opened(folder)
    assert read_session(folder).entries == []
    transcript.close()
    transcript.close()
    opened(folder).close()


def test_other_agents_transcript_is_refused(folder: Path) -> None:
    """A folder that holds another agent's transcript is not taken over, and the lock is given back."""
    opened(folder, "one").close()
    data = (folder / "session.jsonl").read_bytes()
    with pytest.raises(ForeignFileError, match="agent 'one', not of 'two'"):
        opened(folder, "two")
    assert (folder / "session.jsonl").read_bytes() == data
    opened(folder, "one").close()


@pytest.mark.parametrize("data", [b"hello\n", b'{"type":"session","version":3,"id":"x"}\n', b"\xef\xbb\xbf{}\n"])
def test_foreign_session_file_is_refused(folder: Path, data: bytes) -> None:
    """A session.jsonl that is not ours is left alone by owner and readers, and the lock is given back."""
    folder.mkdir(parents=True)
    path = folder / "session.jsonl"
    path.write_bytes(data)
    for attempt in (lambda: opened(folder), lambda: read_session(folder)):
        with pytest.raises(ForeignFileError):
            attempt()
    assert reply_to(folder, "q1") is None
    assert path.read_bytes() == data
    path.unlink()
    opened(folder).close()


def test_nothing_there_is_an_empty_session(folder: Path) -> None:
    """An agent that died before its first word has an empty session and no reply; looking creates nothing."""
    assert read_session(folder).entries == []
    assert reply_to(folder, "q1") is None
    assert not folder.exists()


def test_folders_are_private(transcript: Transcript, folder: Path) -> None:
    """Folders that had to be made have mode 0700, the file 0600."""
    assert folder.stat().st_mode & 0o777 == 0o700
    assert folder.parent.stat().st_mode & 0o777 == 0o700
    assert transcript.path.stat().st_mode & 0o777 == 0o600


class TestTailReply:
    """The root reads what a dead worker's last words were."""

    def test_reply_before_a_torn_tail(self, folder: Path) -> None:
        """Bytes of an unfinished write behind the reply do not hide it, and stay."""
        transcript = opened(folder)
        transcript.message(user("a" * 100_000), "q1")
        transcript.turn_end("q1", reply("q1", "b" * 100_000))
        transcript.close()
        with transcript.path.open("ab") as file:
            file.write(b'{"type":"turn_end","id"')
        data = transcript.path.read_bytes()
        assert reply_to(folder, "q1") == reply("q1", "b" * 100_000)
        assert transcript.path.read_bytes() == data

    def test_half_a_reply_is_none(self, folder: Path) -> None:
        """A reply whose line is not whole does not count."""
        transcript = opened(folder)
        transcript.message(user("a"), "q1")
        whole = transcript.log.end
        transcript.turn_end("q1", reply("q1"))
        transcript.close()
        data = transcript.path.read_bytes()
        for end in range(whole, len(data)):
            transcript.path.write_bytes(data[:end])
            assert reply_to(folder, "q1") is None

    def test_earlier_turns_reply_is_not_the_last(self, transcript: Transcript, folder: Path) -> None:
        """Only the last turn counts, and only when it is finished."""
        transcript.message(user("a"), "q1")
        transcript.turn_end("q1", reply("q1"))
        assert reply_to(folder, "q2") is None
        transcript.append(Custom(id="c", parent_id=transcript.session.leaf, timestamp="t", custom_type="x"))
        assert reply_to(folder, "q1") == reply("q1")
        transcript.message(user("b"), "q2")
        assert reply_to(folder, "q1") is None
        assert reply_to(folder, "q2") is None


texts = st.text(st.characters(codec=None), max_size=12)
contents = st.one_of(
    texts.map(user),
    texts.map(assistant),
    st.sampled_from("12").map(lambda id: Message("assistant", (ToolUse(id, "t", {"x": [1.5, None]}),))),
    st.sampled_from("12").map(lambda id: Message("user", (ToolResult(id, (Text("r"),)),))),
)
steps = st.one_of(
    st.tuples(st.just("message"), contents, st.sampled_from(["", "q1", "q2"])),
    st.tuples(st.just("response"), texts, st.sampled_from(["q1", "q2"])),
    st.tuples(st.just("end"), st.sampled_from(["q1", "q2"]), texts),
    st.tuples(st.just("start"), st.sampled_from(["q1", "q2"]), st.sampled_from(["q1", "q2"])),
    st.tuples(st.just("seed"), st.lists(contents, max_size=3), st.none()),
    st.tuples(st.just("reopen"), st.integers(0, 120), st.none()),
)


@settings(deadline=None, max_examples=60)
@given(st.lists(steps, max_size=12))
def test_file_folds_to_the_live_state(script: list[tuple[str, Any, Any]]) -> None:
    """After every step, deaths that tear the tail included, folding the file gives the state in memory."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name, "agent")
        transcript = opened(folder)
        for step, first, second in script:
            if step == "message":
                transcript.message(first, second)
            elif step == "response":
                transcript.message(assistant(first), second, Usage(len(first), 1, cost_usd=0.1))
            elif step == "end":
                transcript.turn_end(first, reply(first, second))
            elif step == "start":
                transcript.turn_start(first, second)
            elif step == "seed" and not transcript.session.entries:
                transcript.seed(first)
            elif step == "reopen":
                transcript.close()
                data = transcript.path.read_bytes()
                transcript.path.write_bytes(data[: len(data) - first])
                transcript = opened(folder)
            assert state(read_session(folder)) == state(transcript.session)
        transcript.close()


def test_folder_no_file_can_name(folder: Path) -> None:
    """A working folder whose name is not text is recorded as well as it can be, and alike in memory."""
    transcript = Transcript.open(folder, agent="a", cwd="/tmp/\udcff")
    transcript.close()
    assert state(read_session(folder)) == state(transcript.session)


def test_last_turn_is_told_from_its_first_message_on(folder: Path) -> None:
    """Whether a query was begun, and whether it was finished, is read from the file alone."""
    assert read_last_turn(folder) is None
    transcript = opened(folder)
    transcript.seed([user("before")])
    assert read_last_turn(folder) is None
    transcript.message(user("hi"), "q1")
    assert read_last_turn(folder) == ("q1", None, True)
    transcript.turn_end("q1", reply("q1"))
    assert read_last_turn(folder) == ("q1", reply("q1"), True)
    transcript.turn_start("q2", "q1")
    assert read_last_turn(folder) == ("q2", None, False)
    transcript.close()


def test_last_turn_tells_whether_its_prompt_is_recorded(folder: Path) -> None:
    """The results that close the calls of an interrupted turn come before the prompt of the next one."""
    transcript = opened(folder)
    transcript.message(user("hi"), "q1")
    transcript.message(Message("assistant", (ToolUse("a", "bash", {}),)), "q1")
    transcript.turn_start("q2", "q1")
    transcript.message(Message("user", (ToolResult("a", (Text("no result"),)),)), "q2")
    assert read_last_turn(folder) == ("q2", None, False)
    transcript.message(user("go on"), "q2")
    assert read_last_turn(folder) == ("q2", None, True)
    transcript.message(Message("assistant", (ToolUse("b", "bash", {}),)), "q2")
    transcript.message(Message("user", (ToolResult("b", (Text("done"),)),)), "q2")
    assert read_last_turn(folder) == ("q2", None, True)
    transcript.close()


def test_what_a_turn_used_is_on_record_before_it_ends(folder: Path) -> None:
    """Each response tells what it took; of a turn that is cut short that counts, else the reply's own sum."""
    transcript = opened(folder)
    transcript.message(user("hi"), "q1")
    transcript.message(assistant("well"), "q1", Usage(10, 1, cost_usd=0.5))
    transcript.message(assistant("then"), "q1", Usage(20, 2, cost_usd=0.25))
    assert read_usage(folder, "q1") == transcript.session.usage == Usage(30, 3, cost_usd=0.75)
    transcript.turn_start("q2", "q1")
    transcript.message(user("again"), "q2")
    assert read_usage(folder, "q2") == Usage()
    transcript.message(assistant("yes"), "q2", Usage(1, 1))
    assert read_usage(folder, "q2") == Usage(1, 1)
    transcript.turn_end("q2", reply("q2"))
    assert transcript.session.usage == read_session(folder).usage == Usage(30, 3, cost_usd=0.75) + reply("q2").usage
    transcript.close()


@pytest.mark.parametrize("name", ["bash", "run_python"])
def test_a_call_that_runs_is_not_told_as_lost(name: str) -> None:
    """Whoever looks at a turn under way sees the results there are, and none that was made up for its open calls."""
    calls = Message("assistant", (ToolUse("a", "list_files", {}), ToolUse("b", name, {})))
    listed = ToolResult("a", (Text("valves.txt"),))
    said = (user("look"), calls, Message("user", (listed,)))
    assert valid_conversation(said) != said
    assert without_lost(valid_conversation(said)) == said
    assert without_lost(valid_conversation(said[:2])) == said[:2]
    assert without_lost(said) == said
    assert without_lost(()) == ()
