"""Conversations from other programs' files: everything in them, in a tree of ours; damage is an error with its line."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from agent_doubles import assert_valid
from foreign_sessions import PICTURE, pi_tree, subagent_rows, tree_rows
from orch.sessions.formats.conversation import ImportedSession, Kept
from orch.sessions.formats.detect import read_conversation, read_file
from orch_protocol.core.errors import ConfigError, DamagedError, ForeignFileError, StoreError
from orch_protocol.core.messages import (
    Image,
    Message,
    Opaque,
    Text,
    Thinking,
    ToolResult,
    ToolUse,
    Usage,
    assistant,
    text_of,
    user,
)
from orch_protocol.session.entries import (
    BranchSummary,
    CompactionEntry,
    Custom,
    CustomMessage,
    Label,
    MessageEntry,
    ModelChange,
    SessionInfo,
    ThinkingLevelChange,
)
from orch_worker.session.session import SessionState, UnknownEntry
from orch_worker.session.transcript import Transcript
from recordings import chat, dump_lines, pi

DOT = Image("image/png", PICTURE)


def read(tmp_path: Path, lines: list[Any], *, repair: bool = False) -> ImportedSession:
    """Return the conversation in a file with `lines`."""
    return read_conversation(dump_lines(tmp_path / "session.jsonl", lines), repair=repair)


def messages(found: ImportedSession) -> list[MessageEntry]:
    """Return the messages, in file order."""
    return [entry for entry in found.entries if isinstance(entry, MessageEntry)]


def session(found: ImportedSession) -> SessionState:
    """Return the session that the entries are."""
    kinds = (
        UnknownEntry(each.id, each.parent_id, each.type) if isinstance(each, Kept) else each for each in found.entries
    )
    return SessionState.fold(list(kinds))


class TestPi:
    """Sessions of pi."""

    def test_everything_in_it_is_there(self, tmp_path: Path) -> None:
        """Text, thinking with its signature, hidden thinking, calls, results, pictures; ids, times, usage, names."""
        found = read(tmp_path, pi_tree())
        assert (found.shape, found.title, found.cwd) == ("pi session", "Two files", "/srv/no/such")
        assert [entry.id for entry in found.entries] == [line["id"] for line in pi_tree()[1:]]
        assert [entry.parent_id for entry in found.entries] == [line["parentId"] for line in pi_tree()[1:]]
        assert [entry.timestamp for entry in found.entries] == [line["timestamp"] for line in pi_tree()[1:]]
        asked, reply, one, two, *_ = messages(found)
        assert asked.message == user("Read both \u2028 files")
        assert reply.message.content == (
            Thinking("Hm.", "c2ln", "anthropic"),
            Opaque("anthropic", {"type": "redacted_thinking", "data": "aGlkZGVu"}),
            Text("I look."),
            ToolUse("call_1", "read", {"path": "1.txt", "n": 1}),
            ToolUse("call_2", "read", {"path": "2.txt", "n": 2}),
        )
        assert one.message.content == (ToolResult("call_1", (Text("one"), DOT)),)
        assert two.message.content == (ToolResult("call_2", (Text("no such file"),), is_error=True),)
        assert reply.origin is not None
        assert (reply.origin.model, reply.origin.stop) == ("some-model", "toolUse")
        assert reply.origin.usage == Usage(5, 7, 11, 13, 0.25)
        assert reply.usage is None
        assert (found.repairs, found.notes) == ((), ())

    def test_what_says_nothing_to_the_model_is_kept(self, tmp_path: Path) -> None:
        """Labels, changes of model and thinking, and state of extensions are entries still."""
        found = read(tmp_path, pi_tree())
        kept = {type(entry): entry for entry in found.entries}
        base = {"timestamp": "2026-01-02T03:04:01.000Z"}
        assert kept[ModelChange] == ModelChange(
            id="a0000001", parent_id=None, provider="anthropic", model_id="some-model", **base
        )
        level, label, state = kept[ThinkingLevelChange], kept[Label], kept[Custom]
        assert isinstance(level, ThinkingLevelChange)
        assert level.thinking_level == "high"
        assert isinstance(label, Label)
        assert (label.target_id, label.label) == ("a0000007", "good")
        assert isinstance(state, Custom)
        assert (state.custom_type, state.data) == ("counter", {"n": 3})

    def test_what_extensions_said_and_what_came_of_a_branch(self, tmp_path: Path) -> None:
        """Both are what they were, and the model reads both."""
        kept = {type(entry): entry for entry in read(tmp_path, pi_tree()).entries}
        note, left = kept[CustomMessage], kept[BranchSummary]
        assert isinstance(note, CustomMessage)
        assert (note.custom_type, note.content, note.display) == ("note", (Text("It is Friday."),), True)
        assert isinstance(left, BranchSummary)
        assert (left.from_id, left.summary) == ("a0000009", "The wrong way fails.")
        shown = session(read(tmp_path, pi_tree()[:15])).messages
        assert "The wrong way fails." in text_of(shown[-1])
        assert "It is Friday." in text_of(shown[-1])

    def test_the_model_reads_what_it_read_there(self, tmp_path: Path) -> None:
        """The way to the last entry: the summary, what was kept, what came after; the branch that was left is not."""
        shown = session(read(tmp_path, pi_tree())).messages
        assert_valid(shown)
        text = "\n".join(text_of(message) for message in shown)
        assert "We read two files." in text_of(shown[0])
        assert "What is in the picture?" in text
        assert "wrong way" not in text
        assert text_of(shown[-1]) == "Gladly."

    def test_branches_are_kept(self, tmp_path: Path) -> None:
        """An entry in the middle has the children it had."""
        found = read(tmp_path, pi_tree())
        children = [entry.id for entry in found.entries if entry.parent_id == "a0000007"]
        assert children == ["a0000008", "a000000a"]

    def test_a_compaction_keeps_from_the_first_message(self, tmp_path: Path) -> None:
        """The first kept entry may be no message: then it is the message behind that."""
        (entry,) = [each for each in read(tmp_path, pi_tree()).entries if isinstance(each, CompactionEntry)]
        assert (entry.summary, entry.first_kept_entry_id, entry.tokens_before) == (
            "We read two files.",
            "a0000010",
            900,
        )

    def test_the_first_version_had_no_ids(self, tmp_path: Path) -> None:
        """Each entry follows the one before it."""
        found = read(tmp_path, pi(2, steps=1))
        ids = [entry.id for entry in found.entries]
        assert [entry.parent_id for entry in found.entries] == [None, *ids[:-1]]
        assert len(set(ids)) == 8
        assert_valid(session(found).messages)

    def test_a_renamed_role_of_the_second_version(self, tmp_path: Path) -> None:
        """What an extension said under the old name of its role is said."""
        lines = pi_tree()[:4]
        lines[3] = lines[3] | {"message": {"role": "hookMessage", "customType": "x", "content": "by a hook"}}
        assert messages(read(tmp_path, lines))[-1].message == user("by a hook")

    def test_entries_of_later_types_are_kept_and_told_of(self, tmp_path: Path) -> None:
        """What is not known keeps its place, and is counted."""
        lines = pi_tree()
        lines.append({"type": "lane", "id": "b0000001", "parentId": "a0000014", "timestamp": "", "to": 1})
        found = read(tmp_path, lines)
        assert found.entries[-1] == Kept("b0000001", "a0000014", found.entries[-2].timestamp, "lane", {"to": 1})
        assert "1 'lane'" in found.notes[0]

    def test_a_later_version_is_refused(self, tmp_path: Path) -> None:
        """A file of a version that is not known is not guessed at."""
        lines = pi_tree()
        lines[0]["version"] = 4
        with pytest.raises(ForeignFileError, match="version 4"):
            read(tmp_path, lines)

    def test_half_a_character(self, tmp_path: Path) -> None:
        """JavaScript writes one half of a character that was cut in two; it is replaced, and the rest is there."""
        path = dump_lines(tmp_path / "s.jsonl", pi_tree())
        path.write_text(path.read_text().replace("Gladly.", "Gladly \\ud83d."))
        assert messages(read_conversation(path))[-1].message == assistant("Gladly \N{REPLACEMENT CHARACTER}.")


class TestDamage:
    """What is wrong in a file is an error that names the line; or, on demand, set right and told."""

    @pytest.mark.parametrize(
        ("line", "change", "words"),
        [
            (5, {"id": "a0000003"}, "line 6 has the id 'a0000003' of line 4"),
            (5, {"parentId": "ffffffff"}, "line 6 follows the entry 'ffffffff', which is not there"),
            (5, {"parentId": "a0000005"}, "line 6 follows itself"),
            (5, {"parentId": "a0000007"}, "line 6 follows line 8, which comes after it"),
            (5, {"parentId": 7}, "line 6 has no id, or names no entry that it follows"),
            (5, {"message": {"role": "alien", "content": ""}}, "line 6 is no message entry"),
            (5, {"message": {"role": "user", "content": [{"type": "smell"}]}}, "line 6 is no message entry"),
            (5, {"type": ""}, "line 6 is an entry without a type"),
            (18, {"firstKeptEntryId": "a0000009"}, "line 19 keeps what follows the entry 'a0000009'"),
        ],
    )
    def test_an_entry(self, tmp_path: Path, line: int, change: dict[str, Any], words: str) -> None:
        """Ids twice, parents that are not there, circles, wrong shapes."""
        lines = pi_tree()
        lines[line] |= change
        with pytest.raises(DamagedError, match=words):
            read(tmp_path, lines)
        found = read(tmp_path, lines, repair=True)
        assert words in found.repairs[0]
        assert len(found.entries) == len(lines) - 1
        assert_valid(session(found).messages)
        assert text_of(session(found).messages[-1]) == "Gladly."

    def test_a_line_that_is_none(self, tmp_path: Path) -> None:
        """A line in the middle that cannot be read; repaired, what follows it goes on behind what came before."""
        path = dump_lines(tmp_path / "s.jsonl", pi_tree())
        lines = path.read_text().splitlines()
        lines[7] = lines[7][:30] + "\x00" + lines[7][30:]
        path.write_text("\n".join(lines) + "\n")
        with pytest.raises(DamagedError, match=r"line 8 is not a JSON object.*--repair"):
            read_conversation(path)
        found = read_conversation(path, repair=True)
        assert len(found.repairs) == 3  # the line, and those that followed it
        assert text_of(session(found).messages[-1]) == "Gladly."

    def test_what_was_being_written(self, tmp_path: Path) -> None:
        """The beginning of a last line is left out and told of; nothing needs to be asked for."""
        path = dump_lines(tmp_path / "s.jsonl", pi_tree())
        path.write_bytes(path.read_bytes()[:-30])
        found = read_conversation(path)
        assert found.repairs == ("line 21 is the beginning of a line that was never finished: left out",)
        assert len(found.entries) == 19

    def test_zeros_at_the_end_a_mark_at_the_beginning_and_other_line_ends(self, tmp_path: Path) -> None:
        """What editors and losses of power do to a file does not keep it from being read."""
        path = dump_lines(tmp_path / "s.jsonl", pi_tree())
        path.write_bytes(b"\xef\xbb\xbf" + path.read_bytes().replace(b"\n", b"\r\n") + b"\0" * 512)
        found = read_conversation(path)
        assert found.entries == read(tmp_path, pi_tree()).entries
        assert found.repairs == ("512 zero bytes at the end, as a loss of power leaves them: left out",)

    def test_half_a_document(self, tmp_path: Path) -> None:
        """A list of messages that was cut off is no list."""
        path = tmp_path / "m.json"
        path.write_text(json.dumps(chat(2), indent=1)[:-40])
        with pytest.raises(DamagedError, match="not a whole JSON array"):
            read_conversation(path)

    def test_a_file_without_an_end_to_its_depth(self, tmp_path: Path) -> None:
        """What is nested deeper than anybody means is refused."""
        path = tmp_path / "deep.json"
        path.write_text('[{"role":"user","content":' + "[" * 100_000)
        with pytest.raises(DamagedError):
            read_file(path)

    def test_what_is_no_file(self, tmp_path: Path) -> None:
        """A folder and a missing file are errors that name them."""
        with pytest.raises(StoreError, match="directory"):
            read_file(tmp_path)
        with pytest.raises(StoreError, match="nothing"):
            read_file(tmp_path / "nothing")


class TestRows:
    """Transcripts of a coding assistant."""

    def test_rows_become_a_tree_of_messages(self, tmp_path: Path) -> None:
        """Rows of one reply are one message; results that were parted by their parents are together again."""
        found = read(tmp_path, tree_rows())
        path = session(found)
        assert_valid(path.messages)
        asked, reply, one, two, answer, *_ = messages(found)
        assert asked.message == user("Read both files")
        assert reply.message.content == (
            Thinking("Hm.", "c2ln", "anthropic"),
            ToolUse("t1", "Read", {"file_path": "t1.txt"}),
            ToolUse("t2", "Read", {"file_path": "t2.txt"}),
        )
        assert one.message.content == (ToolResult("t1", (Text("one"),)),)
        assert two.message.content == (ToolResult("t2", (Text("two"), DOT)),)
        assert [each.parent_id for each in (reply, one, two, answer)] == [asked.id, reply.id, one.id, two.id]
        assert (found.title, found.cwd, found.repairs) == ("Two files", "/srv/no/such", ())
        assert found.notes == ("rows that are no messages are left out: 1 file-history-snapshot, 1 progress",)

    def test_a_prompt_that_was_written_anew_is_a_branch(self, tmp_path: Path) -> None:
        """Both ways are there, and the conversation goes on with the last one."""
        found = read(tmp_path, tree_rows())
        answer = next(each for each in messages(found) if text_of(each.message) == "Both are there.")
        after = [text_of(each.message) for each in messages(found) if each.parent_id == answer.id]
        assert after == ["Now delete them", "What is this?"]

    def test_a_compaction_has_the_summary_that_was_written(self, tmp_path: Path) -> None:
        """The model reads the summary and what came after it."""
        found = read(tmp_path, tree_rows())
        (entry,) = [each for each in found.entries if isinstance(each, CompactionEntry)]
        assert (entry.summary, entry.tokens_before, entry.first_kept_entry_id) == ("We read two files.", 900, entry.id)
        texts = [text_of(message) for message in session(found).messages]
        assert [text.rpartition("\n")[2] for text in texts] == ["Go on", "Gladly."]
        assert "We read two files." in texts[0]

    def test_subagents_in_files_beside_it(self, tmp_path: Path) -> None:
        """Each subagent's file is a conversation below; files of other conversations are none."""
        folder = tmp_path / "session" / "subagents"
        folder.mkdir(parents=True)
        dump_lines(folder / "agent-a1b2.jsonl", subagent_rows())
        dump_lines(tmp_path / "agent-c3d4.jsonl", subagent_rows(agent="c3d4"))
        dump_lines(tmp_path / "agent-e5f6.jsonl", subagent_rows(session="other"))
        (tmp_path / "agent-bad.jsonl").write_text("\0\0\1")
        found = read(tmp_path, tree_rows())
        assert [each.name for each in found.below] == ["agent-a1b2.jsonl", "agent-c3d4.jsonl"]
        assert text_of(session(found.below[0]).messages[-1]) == "Seven."
        assert "agent-bad.jsonl is left out" in found.repairs[0]

    def test_subagents_among_the_rows(self, tmp_path: Path) -> None:
        """Rows beside the conversation are conversations of their own."""
        rows = tree_rows()
        inside = [{**row, "agentId": None} for row in subagent_rows()]
        rows[5:5] = inside
        found = read(tmp_path, rows)
        assert len(found.below) == 1
        assert [text_of(message) for message in session(found.below[0]).messages] == ["Count the lines", "Seven."]
        assert len(messages(found)) == len(messages(read(tmp_path, tree_rows())))

    def test_a_subagents_own_file(self, tmp_path: Path) -> None:
        """By itself it is the conversation."""
        found = read(tmp_path, subagent_rows())
        assert [text_of(message) for message in session(found).messages] == ["Count the lines", "Seven."]

    @pytest.mark.parametrize(
        ("change", "words"),
        [
            ({"uuid": "u1"}, "line 4 has the id of line 2"),
            ({"parentUuid": "u3"}, "line 4 follows itself or a row that comes after it"),
            ({"parentUuid": 7}, "line 4 follows 7, which is no id"),
            ({"message": 7}, "line 4 is of type assistant and holds no message"),
            ({"message": {"role": "assistant", "content": 7}}, "line 4 is no message"),
        ],
    )
    def test_damage(self, tmp_path: Path, change: dict[str, Any], words: str) -> None:
        """What is wrong in a row is an error with its line, or set right."""
        rows = tree_rows()
        rows[3] |= change
        with pytest.raises(DamagedError, match=words):
            read(tmp_path, rows)
        found = read(tmp_path, rows, repair=True)
        assert words in found.repairs[0]
        assert_valid(session(found).messages)

    def test_a_row_that_is_gone(self, tmp_path: Path) -> None:
        """A parent that is nowhere is usual enough to be no error, and is told of."""
        rows = tree_rows()
        del rows[8]
        found = read(tmp_path, rows)
        assert found.repairs[0] == "line 9 follows a row that is not in the file: it is put where it stands"
        assert text_of(session(found).messages[-1]) == "Gladly."


class TestPlain:
    """Lists of messages."""

    def test_system_text_is_a_message(self, tmp_path: Path) -> None:
        """What a program told the model beforehand is there."""
        path = tmp_path / "m.json"
        path.write_text(json.dumps(chat(1)))
        found = read_conversation(path)
        assert messages(found)[0].message == Message("system", (Text("Be good."),))
        assert_valid(session(found).messages)

    def test_several_conversations_in_one_file(self, tmp_path: Path) -> None:
        """Which one is meant has to be said."""
        path = dump_lines(tmp_path / "m.jsonl", [{"messages": chat(1)}, {"messages": chat(2)}])
        with pytest.raises(ConfigError, match="holds 2 conversations: choose one by number, from 1 to 2"):
            read_conversation(path)
        assert len(read_conversation(path, 2).entries) == 9
        with pytest.raises(ConfigError, match="no number 3"):
            read_conversation(path, 3)

    def test_typed_blocks(self, tmp_path: Path) -> None:
        """Pictures, thinking and results are what they were."""
        image = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": PICTURE}}
        path = tmp_path / "m.json"
        path.write_text(json.dumps([{"role": "user", "content": [image]}]))
        assert messages(read_conversation(path))[0].message.content == (DOT,)

    def test_a_message_that_is_none(self, tmp_path: Path) -> None:
        """It is named; repaired, it is left out."""
        path = dump_lines(tmp_path / "m.jsonl", [*chat(1), {"role": "alien", "content": ""}])
        with pytest.raises(ForeignFileError, match="line 6: a message needs the role"):
            read_conversation(path)
        assert len(read_conversation(path, repair=True).repairs) == 1

    @pytest.mark.parametrize(
        ("role", "block", "words"),
        [
            ("assistant", {"type": "tool_result", "tool_use_id": "a", "content": "x"}, "user's message behind it"),
            ("user", {"type": "tool_use", "id": "a", "name": "n", "input": {}}, "in an assistant's message"),
        ],
    )
    def test_what_a_role_does_not_say(self, tmp_path: Path, role: str, block: Any, words: str) -> None:
        """A result that the assistant says, and a call by the user, are no conversation."""
        path = tmp_path / "m.json"
        path.write_text(json.dumps([{"role": "user", "content": "q"}, {"role": role, "content": [block]}]))
        with pytest.raises(ForeignFileError, match=words):
            read_conversation(path)


class TestOwn:
    """Session files of ours."""

    def test_is_read_with_its_checksums(self, tmp_path: Path) -> None:
        """What is there is what was written; a flipped bit is damage."""
        transcript = Transcript.open(tmp_path / "a", agent="a", cwd="/srv")
        for number in range(3):
            transcript.message(user(f"question {number}"), "t")
        transcript.append(SessionInfo(id="00000001", parent_id=transcript.session.leaf, timestamp="t", name="talk"))
        transcript.close()
        path = tmp_path / "a" / "session.jsonl"
        found = read_conversation(path)
        assert (found.shape, found.title, found.cwd) == ("orch session", "talk", "/srv")
        assert list(found.entries) == transcript.session.entries
        path.write_bytes(path.read_bytes().replace(b"question 1", b"question 7"))
        with pytest.raises(DamagedError, match="line 3 its checksum does not match"):
            read_conversation(path)
        repaired = read_conversation(path, repair=True)
        assert [text_of(each.message) for each in messages(repaired)] == ["question 0", "question 2"]

    def test_lines_that_are_gone(self, tmp_path: Path) -> None:
        """A line that was taken out is noticed by the one behind it."""
        transcript = Transcript.open(tmp_path / "a", agent="a", cwd="/srv")
        for number in range(3):
            transcript.message(user(f"question {number}"), "t")
        transcript.close()
        path = tmp_path / "a" / "session.jsonl"
        lines = path.read_bytes().splitlines(keepends=True)
        path.write_bytes(b"".join([*lines[:2], *lines[3:]]))
        with pytest.raises(DamagedError, match="line 3 follows lost lines"):
            read_conversation(path)
