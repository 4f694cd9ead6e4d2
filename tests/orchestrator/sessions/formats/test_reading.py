"""Reading conversations of other programs: their whole content as entries, and errors with lines for damage."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from agent_doubles import assert_valid
from foreign_sessions import PICTURE, pi_tree, subagent_rows, tree_rows
from orch.sessions.formats.conversation import ForeignEntry, ImportedSession
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
    SESSION_VERSION,
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
from orch_worker.session.entry_codec import UnknownEntry
from orch_worker.session.log.record_format import seal_lines
from orch_worker.session.session import SessionState
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
    """Return the session state of the entries."""
    kinds = (
        UnknownEntry(each.id, each.parent_id, each.type) if isinstance(each, ForeignEntry) else each
        for each in found.entries
    )
    return SessionState.fold(list(kinds))


def row_of(id: str, parent: str | None, message: dict[str, Any]) -> dict[str, Any]:
    """Return the line of a message in a session of pi."""
    return {"type": "message", "id": id, "parentId": parent, "timestamp": "2026-01-01T00:00:00Z", "message": message}


def edited_session(edits: list[tuple[str, Any]]) -> list[dict[str, Any]]:
    """Return a session of pi: the messages q1, a1, r1 and a2, and `edits` with their targets and contents."""
    call = {"type": "toolCall", "id": "c", "name": "bash", "arguments": {}}
    lines = [
        {"type": "session", "version": 3, "id": "s", "cwd": "/"},
        row_of("q1", None, {"role": "user", "content": "Which pump?"}),
        row_of("a1", "q1", {"role": "assistant", "content": [{"type": "text", "text": "look"}, call]}),
        row_of("r1", "a1", {"role": "toolResult", "toolCallId": "c", "content": [{"type": "text", "text": "3 bar"}]}),
        row_of("a2", "r1", {"role": "assistant", "content": [{"type": "text", "text": "It opens at 3 bar."}]}),
    ]
    for number, (target, content) in enumerate(edits):
        replacement = None if content is None else {"content": content}
        edit = {"type": "context_edit", "id": f"e{number}", "parentId": lines[-1]["id"], "targetId": target}
        lines.append(edit | {"replacement": replacement, "timestamp": "2026-01-01T00:00:00Z"})
    return lines


class TestPi:
    """Sessions of pi."""

    def test_pi_session_is_read_completely(self, tmp_path: Path) -> None:
        """Texts, thinking, calls, results, images, ids, times, usage and names are read."""
        found = read(tmp_path, pi_tree())
        assert (found.shape, found.title, found.cwd) == ("pi session", "Two files", "/srv/no/such")
        assert [entry.id for entry in found.entries] == [line["id"] for line in pi_tree()[1:]]
        assert [entry.parent_id for entry in found.entries] == [line["parentId"] for line in pi_tree()[1:]]
        assert [entry.timestamp for entry in found.entries] == [line["timestamp"] for line in pi_tree()[1:]]
        asked, reply, one, two, *_ = messages(found)
        assert asked.message == user("Read both \u2028 files")
        assert reply.message.content == (
            Thinking("Hm.", "c2ln", "anthropic", "some-model"),
            Opaque("anthropic", {"type": "redacted_thinking", "data": "aGlkZGVu"}, "some-model"),
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

    def test_pi_metadata_entries_are_kept(self, tmp_path: Path) -> None:
        """Labels, changes of the model and the thinking level, and states of extensions are read."""
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

    def test_pi_custom_messages_and_branch_summaries_are_read(self, tmp_path: Path) -> None:
        """Both are part of the messages that the model reads."""
        kept = {type(entry): entry for entry in read(tmp_path, pi_tree()).entries}
        note, left = kept[CustomMessage], kept[BranchSummary]
        assert isinstance(note, CustomMessage)
        assert (note.custom_type, note.content, note.display) == ("note", (Text("It is Friday."),), True)
        assert isinstance(left, BranchSummary)
        assert (left.from_id, left.summary) == ("a0000009", "The wrong way fails.")
        shown = session(read(tmp_path, pi_tree()[:15])).messages
        assert "The wrong way fails." in text_of(shown[-1])
        assert "It is Friday." in text_of(shown[-1])

    def test_pi_context_is_the_path_to_the_last_entry(self, tmp_path: Path) -> None:
        """The context has the summary of the compaction and the messages that it kept, but no other branch."""
        shown = session(read(tmp_path, pi_tree())).messages
        assert_valid(shown)
        text = "\n".join(text_of(message) for message in shown)
        assert "We read two files." in text_of(shown[0])
        assert "What is in the picture?" in text
        assert "wrong way" not in text
        assert text_of(shown[-1]) == "Gladly."

    def test_pi_branches_are_kept(self, tmp_path: Path) -> None:
        """An entry with two children has both children after reading."""
        found = read(tmp_path, pi_tree())
        children = [entry.id for entry in found.entries if entry.parent_id == "a0000007"]
        assert children == ["a0000008", "a000000a"]

    def test_pi_compaction_keeps_from_the_first_message(self, tmp_path: Path) -> None:
        """If the first kept entry is no message, the compaction keeps from the next message."""
        (entry,) = [each for each in read(tmp_path, pi_tree()).entries if isinstance(each, CompactionEntry)]
        assert (entry.summary, entry.first_kept_entry_id, entry.tokens_before) == (
            "We read two files.",
            "a0000010",
            900,
        )

    def test_pi_version_1_without_ids_is_read(self, tmp_path: Path) -> None:
        """The parent of each entry is the previous entry."""
        found = read(tmp_path, pi(2, steps=1))
        ids = [entry.id for entry in found.entries]
        assert [entry.parent_id for entry in found.entries] == [None, *ids[:-1]]
        assert len(set(ids)) == 8
        assert_valid(session(found).messages)

    def test_pi_version_2_role_names_are_read(self, tmp_path: Path) -> None:
        """In version 2, messages of extensions have the role `hookMessage`."""
        lines = pi_tree()[:4]
        lines[3] = lines[3] | {"message": {"role": "hookMessage", "customType": "x", "content": "by a hook"}}
        assert messages(read(tmp_path, lines))[-1].message == user("by a hook")

    def test_pi_system_message_has_its_sections(self, tmp_path: Path) -> None:
        """pi 1.6 begins a session with a system message whose text is in sections."""
        rows = [{"type": "session", "version": 3, "id": "s", "cwd": "/"}]
        inner = {"role": "system", "content": "", "sections": {"preamble": "Be good.", "rules": "Use bash."}}
        rows.append({"type": "message", "id": "a", "parentId": None, "message": inner})
        found = read(tmp_path, rows)
        assert messages(found)[0].message == Message("system", (Text("Be good.\n\nUse bash."),))

    @pytest.mark.parametrize(
        ("edits", "expected"),
        [
            ([("q1", "Which valve?")], ["Which valve?", "look", "3 bar", "It opens at 3 bar."]),
            ([("q1", "Which valve?"), ("q1", "Which?")], ["Which?", "look", "3 bar", "It opens at 3 bar."]),
            ([("r1", "(cut)")], ["Which pump?", "look", "(cut)", "It opens at 3 bar."]),
            ([("a2", [{"type": "text", "text": "At 3 bar."}])], ["Which pump?", "look", "3 bar", "At 3 bar."]),
            ([("a2", None)], ["Which pump?", "look", "3 bar"]),
        ],
    )
    def test_pi_context_edits_change_the_later_context(
        self, tmp_path: Path, edits: list[tuple[str, Any]], expected: list[str]
    ) -> None:
        """An edit replaces the content of an earlier message or removes it. The last edit of a message counts."""
        found = read(tmp_path, edited_session(edits))
        blocks = [block for message in session(found).messages for block in message.content]
        results = [block.content if isinstance(block, ToolResult) else (block,) for block in blocks]
        texts = [part.text for parts in results for part in parts if isinstance(part, Text)]
        assert texts == expected
        assert found.notes == ("messages that later edits changed or removed: 1",)

    def test_pi_context_edit_of_another_branch_has_no_effect(self, tmp_path: Path) -> None:
        """An edit belongs to its branch."""
        lines = edited_session([("q1", "Which valve?")])
        lines.append(row_of("b1", "a2", {"role": "user", "content": "And now?"}))
        found = read(tmp_path, lines)
        assert text_of(messages(found)[0].message) == "Which pump?"
        assert found.notes == ()

    @pytest.mark.parametrize("change", [{"targetId": "none"}, {"replacement": "text"}, {"replacement": {}}])
    def test_invalid_pi_context_edit_is_an_error_or_left_out(self, tmp_path: Path, change: dict[str, Any]) -> None:
        """The error names the line. With repair, the original content is used."""
        lines = edited_session([("q1", "Which valve?")])
        lines[-1] |= change
        with pytest.raises(DamagedError, match="line 6 is not a valid context_edit entry"):
            read(tmp_path, lines)
        assert text_of(messages(read(tmp_path, lines, repair=True))[0].message) == "Which pump?"

    def test_pi_compaction_that_keeps_nothing_is_read(self, tmp_path: Path) -> None:
        """The context is the summary alone."""
        lines = edited_session([])
        lines.append({"type": "compaction", "id": "k", "parentId": "a2", "summary": "3 bar", "firstKeptEntryId": None})
        (message,) = session(read(tmp_path, lines)).messages
        assert "3 bar" in text_of(message)

    def test_unknown_pi_entries_are_kept_and_counted(self, tmp_path: Path) -> None:
        """An unknown entry has its id, parent and fields after reading, and a note counts it."""
        lines = pi_tree()
        lines.append({"type": "lane", "id": "b0000001", "parentId": "a0000014", "timestamp": "", "to": 1})
        found = read(tmp_path, lines)
        assert found.entries[-1] == ForeignEntry("b0000001", "a0000014", found.entries[-2].timestamp, "lane", {"to": 1})
        assert "1 'lane'" in found.notes[0]

    def test_later_pi_version_is_refused(self, tmp_path: Path) -> None:
        lines = pi_tree()
        lines[0]["version"] = 4
        with pytest.raises(ForeignFileError, match="version 4"):
            read(tmp_path, lines)

    @pytest.mark.parametrize("version", [SESSION_VERSION - 1, SESSION_VERSION + 1])
    def test_other_version_of_an_orch_session_is_refused(self, tmp_path: Path, version: int) -> None:
        """The error names both versions and a remedy."""
        header = b'{"type":"session","id":"a","timestamp":"","cwd":"/","version":%d}' % version
        (tmp_path / "s.jsonl").write_bytes(seal_lines([header], 0, 0)[0])
        with pytest.raises(
            ForeignFileError, match=f"has version {version}, .* reads only version {SESSION_VERSION}: use"
        ):
            read_conversation(tmp_path / "s.jsonl")

    def test_unpaired_surrogate_is_replaced(self, tmp_path: Path) -> None:
        """JavaScript can write unpaired surrogates."""
        path = dump_lines(tmp_path / "s.jsonl", pi_tree())
        path.write_text(path.read_text().replace("Gladly.", "Gladly \\ud83d."))
        assert messages(read_conversation(path))[-1].message == assistant("Gladly \N{REPLACEMENT CHARACTER}.")


class TestDamage:
    """Damage is an error with its line. With `repair`, damage is repaired and reported."""

    @pytest.mark.parametrize(
        ("line", "change", "words"),
        [
            (5, {"id": "a0000003"}, "line 6 has the id 'a0000003' of line 4"),
            (5, {"parentId": "ffffffff"}, "line 6 follows the entry 'ffffffff', which does not exist"),
            (5, {"parentId": "a0000005"}, "line 6 follows itself"),
            (5, {"parentId": "a0000007"}, "line 6 follows line 8, which comes later"),
            (5, {"parentId": 7}, "line 6 has no id, or does not name its parent"),
            (5, {"message": {"role": "alien", "content": ""}}, "line 6 is not a valid message entry"),
            (5, {"message": {"role": "user", "content": [{"type": "smell"}]}}, "line 6 is not a valid message entry"),
            (5, {"type": ""}, "line 6 is an entry without a type"),
            (18, {"firstKeptEntryId": "a0000009"}, "line 19 keeps the entries after 'a0000009'"),
        ],
    )
    def test_invalid_entries_are_reported(self, tmp_path: Path, line: int, change: dict[str, Any], words: str) -> None:
        """A repair leaves out the invalid entry, and the conversation is still valid."""
        lines = pi_tree()
        lines[line] |= change
        with pytest.raises(DamagedError, match=words):
            read(tmp_path, lines)
        found = read(tmp_path, lines, repair=True)
        assert words in found.repairs[0]
        assert len(found.entries) == len(lines) - 1
        assert_valid(session(found).messages)
        assert text_of(session(found).messages[-1]) == "Gladly."

    def test_unreadable_line_is_an_error_or_repaired(self, tmp_path: Path) -> None:
        """After the repair, entries whose parent was the unreadable line have the previous entry as parent."""
        path = dump_lines(tmp_path / "s.jsonl", pi_tree())
        lines = path.read_text().splitlines()
        lines[7] = lines[7][:30] + "\x00" + lines[7][30:]
        path.write_text("\n".join(lines) + "\n")
        with pytest.raises(DamagedError, match=r"line 8 is not a JSON object.*--repair"):
            read_conversation(path)
        found = read_conversation(path, repair=True)
        assert len(found.repairs) == 3  # the line and its two children
        assert text_of(session(found).messages[-1]) == "Gladly."

    def test_incomplete_last_line_is_dropped_and_reported(self, tmp_path: Path) -> None:
        """This needs no `repair`, because an interrupted write is common."""
        path = dump_lines(tmp_path / "s.jsonl", pi_tree())
        path.write_bytes(path.read_bytes()[:-30])
        found = read_conversation(path)
        assert found.repairs == ("line 21 is the beginning of a line that was never finished: left out",)
        assert len(found.entries) == 19

    def test_trailing_zeros_bom_and_crlf_are_accepted(self, tmp_path: Path) -> None:
        """Editors and power losses cause these changes, which are no damage."""
        path = dump_lines(tmp_path / "s.jsonl", pi_tree())
        path.write_bytes(b"\xef\xbb\xbf" + path.read_bytes().replace(b"\n", b"\r\n") + b"\0" * 512)
        found = read_conversation(path)
        assert found.entries == read(tmp_path, pi_tree()).entries
        assert found.repairs == ("512 zero bytes at the end, which a power loss can cause: left out",)

    def test_truncated_document_is_refused(self, tmp_path: Path) -> None:
        """A JSON list without its end raises DamagedError."""
        path = tmp_path / "m.json"
        path.write_text(json.dumps(chat(2), indent=1)[:-40])
        with pytest.raises(DamagedError, match="not a complete JSON array"):
            read_conversation(path)

    def test_deeply_nested_document_is_refused(self, tmp_path: Path) -> None:
        """The file raises DamagedError instead of a recursion error."""
        path = tmp_path / "deep.json"
        path.write_text('[{"role":"user","content":' + "[" * 100_000)
        with pytest.raises(DamagedError):
            read_file(path)

    def test_folder_or_missing_file_is_an_error(self, tmp_path: Path) -> None:
        with pytest.raises(StoreError, match="directory"):
            read_file(tmp_path)
        with pytest.raises(StoreError, match="nothing"):
            read_file(tmp_path / "nothing")


class TestRows:
    """Transcripts of a coding assistant."""

    def test_rows_become_a_tree_of_messages(self, tmp_path: Path) -> None:
        """Rows of the same reply become one message, and rows that are not messages are counted in a note."""
        found = read(tmp_path, tree_rows())
        path = session(found)
        assert_valid(path.messages)
        asked, reply, one, two, answer, *_ = messages(found)
        assert asked.message == user("Read both files")
        assert reply.message.content == (
            Thinking("Hm.", "c2ln", "anthropic", "claude-x"),
            ToolUse("t1", "Read", {"file_path": "t1.txt"}),
            ToolUse("t2", "Read", {"file_path": "t2.txt"}),
        )
        assert one.message.content == (ToolResult("t1", (Text("one"),)),)
        assert two.message.content == (ToolResult("t2", (Text("two"), DOT)),)
        assert [each.parent_id for each in (reply, one, two, answer)] == [asked.id, reply.id, one.id, two.id]
        assert (found.title, found.cwd, found.repairs) == ("Two files", "/srv/no/such", ())
        assert found.notes == ("rows that are not messages are left out: 1 file-history-snapshot, 1 progress",)

    def test_edited_prompt_is_a_branch(self, tmp_path: Path) -> None:
        """The entry before an edited prompt has one child for each version."""
        found = read(tmp_path, tree_rows())
        answer = next(each for each in messages(found) if text_of(each.message) == "Both are there.")
        after = [text_of(each.message) for each in messages(found) if each.parent_id == answer.id]
        assert after == ["Now delete them", "What is this?\n\n[image: image/png, 1x1]"]

    def test_compaction_row_shows_its_summary(self, tmp_path: Path) -> None:
        """The model reads the summary and the messages after it."""
        found = read(tmp_path, tree_rows())
        (entry,) = [each for each in found.entries if isinstance(each, CompactionEntry)]
        assert (entry.summary, entry.tokens_before, entry.first_kept_entry_id) == ("We read two files.", 900, entry.id)
        texts = [text_of(message) for message in session(found).messages]
        assert [text.rpartition("\n")[2] for text in texts] == ["Go on", "Gladly."]
        assert "We read two files." in texts[0]

    def test_subagent_files_beside_the_session_are_read(self, tmp_path: Path) -> None:
        """Files of other sessions are ignored, and an unreadable file is reported."""
        folder = tmp_path / "session" / "subagents"
        folder.mkdir(parents=True)
        dump_lines(folder / "agent-a1b2.jsonl", subagent_rows())
        dump_lines(tmp_path / "agent-c3d4.jsonl", subagent_rows(agent="c3d4"))
        dump_lines(tmp_path / "agent-e5f6.jsonl", subagent_rows(session="other"))
        (tmp_path / "agent-bad.jsonl").write_text("\0\0\1")
        found = read(tmp_path, tree_rows())
        assert [each.name for each in found.subagents] == ["agent-a1b2.jsonl", "agent-c3d4.jsonl"]
        assert text_of(session(found.subagents[0]).messages[-1]) == "Seven."
        assert "agent-bad.jsonl is left out" in found.repairs[0]

    def test_sidechain_rows_are_conversations_of_subagents(self, tmp_path: Path) -> None:
        """Rows of a subagent in the session's file form a separate conversation."""
        rows = tree_rows()
        inside = [{**row, "agentId": None} for row in subagent_rows()]
        rows[5:5] = inside
        found = read(tmp_path, rows)
        assert len(found.subagents) == 1
        assert [text_of(message) for message in session(found.subagents[0]).messages] == ["Count the lines", "Seven."]
        assert len(messages(found)) == len(messages(read(tmp_path, tree_rows())))

    def test_subagent_file_alone_is_a_conversation(self, tmp_path: Path) -> None:
        found = read(tmp_path, subagent_rows())
        assert [text_of(message) for message in session(found).messages] == ["Count the lines", "Seven."]

    @pytest.mark.parametrize(
        ("change", "words"),
        [
            ({"uuid": "u1"}, "line 4 has the id of line 2"),
            ({"parentUuid": "u3"}, "line 4 follows itself or a later row"),
            ({"parentUuid": 7}, "line 4 follows 7, which is not an id"),
            ({"message": 7}, "line 4 is of type assistant and contains no message"),
            ({"message": {"role": "assistant", "content": 7}}, "line 4 is not a message"),
        ],
    )
    def test_damaged_row_is_an_error_or_repaired(self, tmp_path: Path, change: dict[str, Any], words: str) -> None:
        """The error has the line of the row."""
        rows = tree_rows()
        rows[3] |= change
        with pytest.raises(DamagedError, match=words):
            read(tmp_path, rows)
        found = read(tmp_path, rows, repair=True)
        assert words in found.repairs[0]
        assert_valid(session(found).messages)

    def test_missing_parent_row_is_reported(self, tmp_path: Path) -> None:
        """A missing parent is a reported repair, and no error without `repair`."""
        rows = tree_rows()
        del rows[8]
        found = read(tmp_path, rows)
        assert found.repairs[0] == "line 9 follows a row that is not in the file; it keeps its position in the file"
        assert text_of(session(found).messages[-1]) == "Gladly."


class TestPlain:
    """Lists of messages."""

    def test_system_text_of_plain_messages_is_kept(self, tmp_path: Path) -> None:
        """The text becomes a system message."""
        path = tmp_path / "m.json"
        path.write_text(json.dumps(chat(1)))
        found = read_conversation(path)
        assert messages(found)[0].message == Message("system", (Text("Be good."),))
        assert_valid(session(found).messages)

    def test_file_with_several_conversations_needs_a_choice(self, tmp_path: Path) -> None:
        """Without a number, or with an unknown number, reading fails."""
        path = dump_lines(tmp_path / "m.jsonl", [{"messages": chat(1)}, {"messages": chat(2)}])
        with pytest.raises(ConfigError, match="contains 2 conversations; choose one by its number, from 1 to 2"):
            read_conversation(path)
        assert len(read_conversation(path, 2).entries) == 9
        with pytest.raises(ConfigError, match="no conversation number 3"):
            read_conversation(path, 3)

    def test_typed_blocks_are_read(self, tmp_path: Path) -> None:
        """An image block becomes an Image."""
        image = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": PICTURE}}
        path = tmp_path / "m.json"
        path.write_text(json.dumps([{"role": "user", "content": [image]}]))
        assert messages(read_conversation(path))[0].message.content == (DOT,)

    def test_invalid_message_is_named_or_skipped_by_repair(self, tmp_path: Path) -> None:
        path = dump_lines(tmp_path / "m.jsonl", [*chat(1), {"role": "alien", "content": ""}])
        with pytest.raises(ForeignFileError, match="line 6: a message must have the role"):
            read_conversation(path)
        assert len(read_conversation(path, repair=True).repairs) == 1

    @pytest.mark.parametrize(
        ("role", "block", "words"),
        [
            (
                "assistant",
                {"type": "tool_result", "tool_use_id": "a", "content": "x"},
                "in the user message after the call",
            ),
            ("user", {"type": "tool_use", "id": "a", "name": "n", "input": {}}, "in an assistant message"),
        ],
    )
    def test_block_under_the_wrong_role_is_refused(self, tmp_path: Path, role: str, block: Any, words: str) -> None:
        """A result in an assistant message, and a call in a user message, are refused."""
        path = tmp_path / "m.json"
        path.write_text(json.dumps([{"role": "user", "content": "q"}, {"role": role, "content": [block]}]))
        with pytest.raises(ForeignFileError, match=words):
            read_conversation(path)


class TestOwn:
    """Session files of orch."""

    def test_own_checksums_are_verified(self, tmp_path: Path) -> None:
        """A changed line raises DamagedError; a repair leaves the line out."""
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

    def test_removed_lines_are_detected(self, tmp_path: Path) -> None:
        """The line after the gap raises DamagedError."""
        transcript = Transcript.open(tmp_path / "a", agent="a", cwd="/srv")
        for number in range(3):
            transcript.message(user(f"question {number}"), "t")
        transcript.close()
        path = tmp_path / "a" / "session.jsonl"
        lines = path.read_bytes().splitlines(keepends=True)
        path.write_bytes(b"".join([*lines[:2], *lines[3:]]))
        with pytest.raises(DamagedError, match="line 3 follows lost lines"):
            read_conversation(path)
