"""A transcript: the session in memory equals the session in the file."""

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

from orch_protocol.agent.plan import Task
from orch_protocol.agent.spec import BackendSpec
from orch_protocol.core.archives import RecordUpgrade
from orch_protocol.core.errors import ForeignFileError, LockedError, StoreError
from orch_protocol.core.messages import (
    Image,
    Message,
    Opaque,
    Reply,
    Text,
    Thinking,
    ToolResult,
    ToolUse,
    Usage,
    assistant,
    text_of,
    user,
)
from orch_protocol.core.taint import TaintLabel
from orch_protocol.session.entries import SESSION_VERSION, Custom, MessageEntry, SessionInfo, ThinkingLevelChange
from orch_worker.conversation.history import valid_conversation, without_lost
from orch_worker.session.log.append_log import AppendLog
from orch_worker.session.log.record_format import seal_lines
from orch_worker.session.session import SessionState
from orch_worker.session.session_reader import read_last_turn, read_session, read_usage
from orch_worker.session.transcript import Transcript


def opened(folder: Path, agent: str = "agent") -> Transcript:
    return Transcript.open(folder, agent=agent, cwd="/somewhere")


def reply(query_id: str, text: str = "done") -> Reply:
    """Return a reply to `query_id`."""
    return Reply("agent", query_id, text, usage=Usage(1, 2, cost_usd=0.25), steps=1)


def reply_to(folder: Path, query_id: str) -> Reply | None:
    """Return the reply to `query_id` if that query is the last turn in the file and has finished."""
    last = read_last_turn(folder)
    return last.reply if last is not None and last.query_id == query_id else None


def state(session: SessionState) -> dict[str, Any]:
    """Return all public state of a session."""
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


def test_turn_is_on_disk_as_soon_as_it_is_recorded(transcript: Transcript, folder: Path) -> None:
    """Other processes can read each message and the reply as soon as they are recorded."""
    entry = transcript.message(user("hi"), "q1")
    assert read_session(folder).messages == (user("hi"),)
    assert read_session(folder).interrupted == "q1"
    assert reply_to(folder, "q1") is None
    transcript.message(assistant("ho"), "q1")
    transcript.turn_end("q1", reply("q1"))
    assert reply_to(folder, "q1") == reply("q1")
    assert state(read_session(folder)) == state(transcript.session)
    assert transcript.session.entries[0] == entry


def test_file_has_the_pi_format(transcript: Transcript) -> None:
    """The header has a version and a folder; entries have a type, an id, a parentId and a UTC time in milliseconds."""
    transcript.message(user("hi"), "q1")
    transcript.turn_end("q1", reply("q1"))
    header, message, end = (json.loads(line) for line in transcript.path.read_text().splitlines())
    assert {key: header[key] for key in ("type", "version", "cwd", "agent")} == {
        "type": "session",
        "version": SESSION_VERSION,
        "cwd": "/somewhere",
        "agent": "agent",
    }
    assert (message["type"], message["parentId"], message["message"]["role"]) == ("message", None, "user")
    assert (end["type"], end["parentId"]) == ("turn_end", message["id"])
    for line in (header, message, end):
        assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z", line["timestamp"])
    assert re.fullmatch("[0-9a-f]{8}", message["id"])


def test_reopened_transcript_continues_the_same_tree(folder: Path) -> None:
    """A reopened transcript has the same state and appends to the same tree."""
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


def test_interrupted_turn_is_reported_until_the_next_turn(folder: Path) -> None:
    """The session names a turn that the process did not finish, until the next turn starts."""
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
    """`seed` adds messages without a turn in one append, and only to an empty transcript."""
    history = [user("a"), assistant("b"), user("c"), assistant("d")]
    transcript.seed(history)
    assert transcript.session.messages == tuple(history)
    assert transcript.session.interrupted is None
    lines = transcript.path.read_bytes().splitlines()
    assert [b'"m":1' in line for line in lines] == [False, True, True, True, False]
    with pytest.raises(StoreError, match="has 4 entries"):
        transcript.seed(history)
    assert state(read_session(folder)) == state(transcript.session)


def test_partial_seed_is_discarded(folder: Path) -> None:
    """The transcript is empty if the process ended during seeding."""
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


def test_several_entries_are_one_write(transcript: Transcript, folder: Path) -> None:
    """`append` records several entries of the caller and syncs them."""
    transcript.append(
        Custom(id="1", parent_id=None, timestamp="t", custom_type="x", data={"a": [1, None]}),
        MessageEntry(id="2", parent_id="1", timestamp="t", message=user("hi")),
        sync=True,
    )
    assert transcript.log.dirty == 0
    assert state(read_session(folder)) == state(transcript.session)


def test_unknown_entries_are_kept(folder: Path) -> None:
    """Entries of unknown types, and of newer versions, stay in the file and in the tree."""
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


def test_damaged_line_is_skipped_and_reported(folder: Path) -> None:
    """The other lines are read, and the file is unchanged."""
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


def test_unencodable_text_is_replaced(transcript: Transcript, folder: Path) -> None:
    """Unpaired surrogates become U+FFFD in memory and on disk."""
    odd = "a\ud800b\u2028\u0085\0\n"
    entry = transcript.message(Message("user", (Text(odd), Opaque("p", {"k\udc00": [odd]}))), "q")
    block = entry.message.content[0]
    assert isinstance(block, Text)
    assert block.text == "a\N{REPLACEMENT CHARACTER}b\u2028\u0085\0\n"
    assert state(read_session(folder)) == state(transcript.session)


@pytest.mark.parametrize("value", [float("nan"), float("inf"), 2**70, (1, 2), b"bytes", {1: 2}])
def test_values_changed_by_json_are_the_same_in_memory_and_on_disk(
    transcript: Transcript, folder: Path, value: Any
) -> None:
    """A value that JSON changes is also changed in memory, so that a restored agent has the same conversation."""
    transcript.message(Message("assistant", (ToolUse("1", "t", {"v": value}),)), "q")
    assert state(read_session(folder)) == state(transcript.session)


@pytest.mark.parametrize(
    "blocks",
    [
        (Text("caf\u00e9 \u2028"),),
        (Thinking("hm", "signature", "anthropic"), Text("x")),
        (ToolResult("1", (Text("done"), Image("image/png", "AAAA"))),),
    ],
)
def test_appended_message_is_not_decoded_again(
    transcript: Transcript, folder: Path, blocks: tuple[Text | Thinking | ToolResult, ...]
) -> None:
    """The session stores the given message object, and this object equals the message in the file."""
    message = Message("user", blocks)
    assert transcript.message(message, "q", Usage(cost_usd=0.1)).message is message
    assert state(read_session(folder)) == state(transcript.session)


def test_appended_reply_is_not_decoded_again(transcript: Transcript, folder: Path) -> None:
    """The session stores the given reply object, and this object equals the reply in the file."""
    transcript.message(user("a"), "q")
    given = Reply("a", "q", "\u00fc", usage=Usage(cost_usd=0.1), files_changed=("a.py",), unfinished=("bash",))
    transcript.turn_end("q", given)
    assert transcript.session.reply("q") is given
    assert state(read_session(folder)) == state(transcript.session)


def test_entries_fold_the_same_in_memory_and_on_disk(transcript: Transcript, folder: Path) -> None:
    """Entries of each type give the same session in memory and from the file, also after going back."""
    first = transcript.message(user("\u00e9"), "q1").id
    transcript.turn_start("q2", "q1")
    transcript.turn = "q2"
    transcript.tasks((Task("\u00fc", "in_progress"),))
    transcript.record_taint_labels((TaintLabel("untrusted", "web_fetch \u00e9"),))
    transcript.plan_approved("plan")
    transcript.model_change(BackendSpec("scripted", "m"))
    transcript.upgrade(RecordUpgrade("abcdef012345", "a better text"))
    transcript.label(first, "start \u00e9")
    transcript.append(SessionInfo(id="00000001", parent_id=transcript.session.leaf, timestamp="", name="title"))
    transcript.append(ThinkingLevelChange(id="00000002", parent_id="00000001", timestamp="", thinking_level="low"))
    transcript.checkout(first)
    read = read_session(folder)
    assert state(read) == state(transcript.session)
    assert (read.tasks, read.taint_labels, read.answerer) == ((), (), "")
    transcript.checkout("00000002")
    read, kept = read_session(folder), transcript.session
    assert (
        (read.tasks, read.taint_labels, read.answerer) == (kept.tasks, kept.taint_labels, kept.answerer) != ((), (), "")
    )


def test_session_has_a_copy_of_json_data(transcript: Transcript, folder: Path) -> None:
    """Later changes of tool arguments or extension data do not change the conversation."""
    input: dict[str, Any] = {"files": ["a"]}
    data: dict[str, Any] = {"seen": []}
    transcript.message(Message("assistant", (ToolUse("1", "t", input),)), "q")
    transcript.custom("ext", data)
    input["files"].append("b")
    data["seen"].append("b")
    assert state(read_session(folder)) == state(transcript.session)


def test_unrecordable_entry_is_refused(transcript: Transcript, folder: Path) -> None:
    """An entry that JSON cannot represent raises StoreError, and neither the file nor the session changes."""
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


def test_failed_append_leaves_the_session_unchanged(
    transcript: Transcript, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A full disk leaves the session unchanged, and the turn continues when there is space again."""
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
    """An open transcript cannot be opened again, but it can be read; closing it releases the lock."""
    with pytest.raises(LockedError, match=str(folder)):
        opened(folder)
    assert read_session(folder).entries == []
    transcript.close()
    transcript.close()
    opened(folder).close()


def test_other_agents_transcript_is_refused(folder: Path) -> None:
    """Opening the transcript of another agent fails without a change, and the lock is released."""
    opened(folder, "one").close()
    data = (folder / "session.jsonl").read_bytes()
    with pytest.raises(ForeignFileError, match="agent 'one', not of 'two'"):
        opened(folder, "two")
    assert (folder / "session.jsonl").read_bytes() == data
    opened(folder, "one").close()


@pytest.mark.parametrize("data", [b"hello\n", b'{"type":"session","version":3,"id":"x"}\n', b"\xef\xbb\xbf{}\n"])
def test_foreign_session_file_is_refused(folder: Path, data: bytes) -> None:
    """Opening and reading a foreign session.jsonl fail without a change, and the lock is released."""
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


@pytest.mark.parametrize(("change", "age"), [(-1, "older"), (1, "newer")])
def test_transcript_of_another_version_is_refused(folder: Path, change: int, age: str) -> None:
    """The error names both versions and a remedy. The file is not changed, and the lock is released."""
    opened(folder).close()
    path, version = folder / "session.jsonl", SESSION_VERSION + change
    header = b'{"type":"session","id":"a","timestamp":"","cwd":"/","version":%d}' % version
    path.write_bytes(seal_lines([header], 0, 0)[0])
    data = path.read_bytes()
    message = f"{path} has version {version}, but this orch reads only version {SESSION_VERSION}: use the {age} orch"
    for attempt in (lambda: opened(folder), lambda: read_session(folder)):
        with pytest.raises(ForeignFileError, match=re.escape(message)):
            attempt()
    assert path.read_bytes() == data
    path.unlink()
    opened(folder).close()


def test_missing_transcript_is_an_empty_session(folder: Path) -> None:
    """Reading a missing transcript creates no file."""
    assert read_session(folder).entries == []
    assert reply_to(folder, "q1") is None
    assert not folder.exists()


def test_created_folders_and_files_are_private(transcript: Transcript, folder: Path) -> None:
    """Folders have mode 0700 and files have mode 0600."""
    assert folder.stat().st_mode & 0o777 == 0o700
    assert folder.parent.stat().st_mode & 0o777 == 0o700
    assert transcript.path.stat().st_mode & 0o777 == 0o600


class TestTailReply:
    """The root reads the last reply of a worker from the end of the file."""

    def test_reply_before_a_torn_tail_is_found(self, folder: Path) -> None:
        """Reading the reply does not remove the torn bytes."""
        transcript = opened(folder)
        transcript.message(user("a" * 100_000), "q1")
        transcript.turn_end("q1", reply("q1", "b" * 100_000))
        transcript.close()
        with transcript.path.open("ab") as file:
            file.write(b'{"type":"turn_end","id"')
        data = transcript.path.read_bytes()
        assert reply_to(folder, "q1") == reply("q1", "b" * 100_000)
        assert transcript.path.read_bytes() == data

    def test_incomplete_reply_line_does_not_count(self, folder: Path) -> None:
        transcript = opened(folder)
        transcript.message(user("a"), "q1")
        whole = transcript.log.end
        transcript.turn_end("q1", reply("q1"))
        transcript.close()
        data = transcript.path.read_bytes()
        for end in range(whole, len(data)):
            transcript.path.write_bytes(data[:end])
            assert reply_to(folder, "q1") is None

    def test_reply_of_an_earlier_turn_does_not_count(self, transcript: Transcript, folder: Path) -> None:
        """Only the reply of the last turn is found, and only if that turn has finished."""
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


@settings(max_examples=60)
@given(st.lists(steps, max_size=12))
def test_file_folds_to_the_live_state(script: list[tuple[str, Any, Any]]) -> None:
    """Session and file agree after each step, also after a process end that tears the tail."""
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


def test_undecodable_folder_name_is_recorded_with_replacements(folder: Path) -> None:
    """The folder name is the same in memory and on disk."""
    transcript = Transcript.open(folder, agent="a", cwd="/tmp/\udcff")
    transcript.close()
    assert state(read_session(folder)) == state(transcript.session)


def test_file_shows_whether_the_last_query_started_and_finished(folder: Path) -> None:
    """`read_last_turn` returns the last query, its reply, and whether its prompt is recorded."""
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


def test_file_shows_whether_the_last_prompt_is_recorded(folder: Path) -> None:
    """Results that close an interrupted turn do not count as the next prompt."""
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


def test_usage_is_recorded_with_each_response(folder: Path) -> None:
    """The usage of an interrupted turn is the sum of its responses; a finished turn has the usage of its reply."""
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
def test_reading_a_running_turn_invents_no_results(name: str) -> None:
    """`without_lost` removes the results that `valid_conversation` adds for open calls."""
    calls = Message("assistant", (ToolUse("a", "list_files", {}), ToolUse("b", name, {})))
    listed = ToolResult("a", (Text("valves.txt"),))
    messages = (user("look"), calls, Message("user", (listed,)))
    assert valid_conversation(messages) != messages
    assert without_lost(valid_conversation(messages)) == messages
    assert without_lost(valid_conversation(messages[:2])) == messages[:2]
    assert without_lost(messages) == messages
    assert without_lost(()) == ()
