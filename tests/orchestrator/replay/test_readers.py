"""Reading recordings: the known formats, and errors for other and damaged files."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from orch.replay.readers import read_recordings
from orch_protocol.core.errors import DamagedError, ForeignFileError, StoreError
from orch_protocol.core.messages import Message, Text, ToolResult, ToolUse, assistant, text_of, user
from orch_worker.session.transcript import Transcript
from recordings import chat, dump_lines, pi, rows


def test_pi_session(tmp_path: Path) -> None:
    """The recording of a pi session has its messages, calls, results and reported tokens."""
    (found,) = read_recordings(dump_lines(tmp_path / "s.jsonl", pi(2, steps=2)))
    assert (found.shape, len(found.messages), len(found.calls)) == ("pi session", 12, 6)
    assert found.messages[1].input_tokens == 2025
    assert found.messages[1].output_tokens == 30
    assert found.messages[1].message.content == (
        ToolUse("c0_0", "bash", {"command": "grep -n handler_0_0 src/mod_0.py"}),
    )
    assert isinstance(found.messages[2].message.content[0], ToolResult)
    assert found.messages[2].at is not None


def test_own_compactions_of_a_session(tmp_path: Path) -> None:
    """A compaction names the first row that it kept; the next request has the summary and the kept rows."""
    lines = pi(3, steps=1)
    lines.insert(
        9, {"type": "compaction", "summary": "SUMMED", "firstKeptEntryIndex": 7, "timestamp": "", "tokensBefore": 1}
    )
    (found,) = read_recordings(dump_lines(tmp_path / "s.jsonl", lines))
    place, context = list(found.contexts())[4]
    assert place == 9
    assert [message.role for message in context] == ["user", "user", "assistant", "user"]
    assert "SUMMED" in str(context[0])
    assert len(list(found.contexts())[3][1]) == 7


def test_context_edits_of_a_session(tmp_path: Path) -> None:
    """Requests before an edit contain the original message. Requests after it contain the new one, or none."""
    lines: list[dict[str, Any]] = [{"type": "session", "id": "s", "version": 3}]
    entries: list[tuple[str, dict[str, Any]]] = []
    for number in range(3):
        entries.append((f"q{number}", {"role": "user", "content": f"question {number}"}))
        entries.append((f"a{number}", {"role": "assistant", "content": [{"type": "text", "text": f"answer {number}"}]}))
    edits = {"a0": ("q0", {"content": "short"}), "a1": ("a0", None)}
    parent = None
    for id, message in entries:
        lines.append({"type": "message", "id": id, "parentId": parent, "message": message})
        parent = id
        if id in edits:
            target, replacement = edits[id]
            edit = {"type": "context_edit", "id": f"e{id}", "parentId": id, "targetId": target}
            lines.append(edit | {"replacement": replacement})
            parent = f"e{id}"
    (found,) = read_recordings(dump_lines(tmp_path / "s.jsonl", lines))
    contexts = [[text_of(message) for message in context] for _, context in found.contexts()]
    assert contexts == [
        ["question 0"],
        ["short", "answer 0", "question 1"],
        ["short", "question 1", "answer 1", "question 2"],
    ]
    sizes = [size for _, size in found.context_sizes(lambda message: len(text_of(message)))]
    assert sizes == [sum(map(len, context)) for context in contexts]


def test_branch_of_a_session(tmp_path: Path) -> None:
    """If entries name their parents, the conversation is the path to the last entry."""
    texts = [("a", None, "user", "q"), ("b", "a", "assistant", "wrong"), ("c", "a", "assistant", "right")]
    lines: list[dict[str, Any]] = [{"type": "session", "id": "s", "version": 3}]
    for id, parent, role, text in texts:
        message = {"role": role, "content": [{"type": "text", "text": text}]}
        lines.append({"type": "message", "id": id, "parentId": parent, "message": message})
    (found,) = read_recordings(dump_lines(tmp_path / "s.jsonl", lines))
    assert [each.message for each in found.messages] == [user("q"), assistant("right")]


def test_orch_session(tmp_path: Path) -> None:
    """A transcript of orch can be read as a recording."""
    transcript = Transcript.open(tmp_path / "a", agent="a", cwd="/")
    call = Message("assistant", (ToolUse("c", "bash", {"command": "ls"}),))
    for message in (user("q"), call, Message("user", (ToolResult("c", (Text("x"),)),)), assistant("done")):
        transcript.message(message, "t")
    transcript.close()
    (found,) = read_recordings(tmp_path / "a" / "session.jsonl")
    assert (found.shape, len(found.messages), len(found.calls)) == ("orch session", 4, 2)
    assert found.messages[1].message == call


def test_rows_of_one_reply_are_one_message(tmp_path: Path) -> None:
    """Rows with the same message id are one reply, even with a result between them; unrelated rows are left out."""
    (found,) = read_recordings(dump_lines(tmp_path / "r.jsonl", rows()))
    assert [each.message.role for each in found.messages] == ["user", "assistant", "user", "user", "assistant"]
    reply = found.messages[1]
    assert [type(block).__name__ for block in reply.message.content] == ["Text", "ToolUse", "ToolUse"]
    assert (reply.input_tokens, reply.output_tokens) == (9503, 40)
    assert len(found.calls) == 2


@pytest.mark.parametrize("shape", ["list", "object", "lines", "dialogues", "dialogue lines", "bare lists"])
def test_plain_messages(tmp_path: Path, shape: str) -> None:
    """Messages can be a list, an object, lines, or several dialogues."""
    path, messages = tmp_path / "m.json", chat(2)
    written = {
        "list": json.dumps(messages, indent=1),
        "object": json.dumps({"model": "x", "messages": messages}),
        "lines": "".join(json.dumps(message) + "\n" for message in messages),
        "dialogues": json.dumps([{"task": 1, "traj": messages}, {"task": 2, "traj": messages}]),
        "dialogue lines": "".join(json.dumps({"messages": messages}) + "\n" for _ in range(2)),
        "bare lists": json.dumps([messages, messages]),
    }
    path.write_text(written[shape])
    found = read_recordings(path)
    assert len(found) == (2 if shape in ("dialogues", "dialogue lines", "bare lists") else 1)
    assert all((len(each.messages), len(each.calls)) == (9, 4) for each in found)
    assert all(each.shape == "openai messages" for each in found)


def test_typed_blocks_are_plain_messages_too(tmp_path: Path) -> None:
    """The types of the blocks determine the format of the messages."""
    use = {"type": "tool_use", "id": "a", "name": "b", "input": {}}
    result = {"type": "tool_result", "tool_use_id": "a", "content": "x"}
    path = tmp_path / "m.json"
    path.write_text(
        json.dumps(
            [
                {"role": "user", "content": "q"},
                {"role": "assistant", "content": [use]},
                {"role": "user", "content": [result]},
            ]
        )
    )
    assert read_recordings(path)[0].shape == "anthropic messages"


def test_cut_off_calls_get_a_result(tmp_path: Path) -> None:
    """Providers require a result for each call; compactions stay at their places."""
    lines = pi(3, steps=1)
    del lines[3]
    lines.insert(8, {"type": "compaction", "summary": "S", "firstKeptEntryIndex": 4})
    (found,) = read_recordings(dump_lines(tmp_path / "s.jsonl", lines))
    calls = [block for each in found.messages for block in each.message.content if isinstance(block, ToolUse)]
    results = [block for each in found.messages for block in each.message.content if isinstance(block, ToolResult)]
    assert [call.id for call in calls] == [result.tool_use_id for result in results]
    assert [(change.before, change.kept) for change in found.changes] == [(8, 4)]
    last = [*pi(1)[:3]]
    (open_end,) = read_recordings(dump_lines(tmp_path / "t.jsonl", last))
    assert len(open_end.messages) == 2


def damaged(lines: list[Any], kind: str) -> bytes:
    """Return `lines` as JSON lines with one kind of damage at line 4, which is a result."""
    data = [json.dumps(line).encode() for line in lines]
    match kind:
        case "cut":
            data[3] = data[3][:-20]
        case "copied":
            data.insert(3, data[3])
        case "copied block":
            data[6:6] = data[2:6]
        case "other program":
            data.insert(3, b'{"timestamp": "2026-01-01", "type": "response_item", "payload": {"role": "user"}}')
        case "no JSON":
            data.insert(3, b"\x00\xff\xfe")
        case "binary":
            data[3] = data[3].replace(b"word", b"wo\x00\xffrd", 1)
        case "lost call":
            del data[2]
        case "lost header":
            del data[0]
    return b"\n".join(data) + b"\n"


@pytest.mark.parametrize("linked", [True, False])
@pytest.mark.parametrize(
    ("kind", "words"),
    [
        ("cut", "line 4 is not a JSON object"),
        ("copied", "line 5 is a copy of line 4"),
        ("copied block", "line 7 is a copy of line 3"),
        ("other program", ""),
        ("no JSON", "line 4 is not a JSON object"),
        ("binary", "line 4 contains bytes that are not text"),
        ("lost call", "1 results without a call are left out"),
        ("lost header", "line 1 should be the header"),
    ],
)
def test_damaged_session_is_read_without_the_damage(tmp_path: Path, kind: str, words: str, linked: bool) -> None:
    """Everything else is read, each call has one result, and what was left out is listed."""
    lines = pi(3, steps=2)
    for number, line in enumerate(lines[1:] if linked else []):
        line |= {"id": f"{number:08x}", "parentId": f"{number - 1:08x}" if number else None}
    path = tmp_path / "s.jsonl"
    path.write_bytes(damaged(lines, kind))
    (found,) = read_recordings(path)
    calls = [block.id for each in found.messages for block in each.message.content if isinstance(block, ToolUse)]
    results = [
        block.tool_use_id for each in found.messages for block in each.message.content if isinstance(block, ToolResult)
    ]
    assert calls == results
    assert len(calls) == (5 if kind == "lost call" else 6)
    assert words in "\n".join(found.skipped)
    assert found.skipped or not words
    asked = [block.text for each in found.messages for block in each.message.content if isinstance(block, Text)]
    assert sum("Fix module" in text for text in asked) == 3


def test_all_damaged_lines_are_listed(tmp_path: Path) -> None:
    """The list has no limit."""
    data = b"".join(json.dumps(line).encode() + b"\n{\n" for line in pi(10))
    path = tmp_path / "s.jsonl"
    path.write_bytes(data)
    (found,) = read_recordings(path)
    assert len(found.skipped) == data.count(b"\n{\n") > 50
    assert len(found.calls) == 40


@pytest.mark.parametrize("indent", [None, 1])
@pytest.mark.parametrize("shape", ["list", "object", "dialogues"])
def test_damaged_document_is_read_without_the_damaged_items(tmp_path: Path, shape: str, indent: int | None) -> None:
    """A file that ends too early, and a file with a damaged message, lose only these messages or dialogues."""
    messages = chat(4)
    value = {"list": messages, "object": {"model": "x", "messages": messages}, "dialogues": [{"traj": messages}] * 3}
    text = json.dumps(value[shape], indent=indent)
    path = tmp_path / "m.json"
    for damage in (text[: int(0.8 * len(text))], text.replace('"Answer 2"', '"Answer 2', 1)):
        path.write_text(damage)
        found = read_recordings(path)
        answers = [str(each.message.content) for one in found for each in one.messages if each.message.role != "user"]
        assert "Answer 0" in "".join(answers)
        assert "damaged" in found[0].skipped[0]
        if shape == "dialogues":
            assert len(found) == 2


def test_line_of_another_program_does_not_decide_about_the_format(tmp_path: Path) -> None:
    """The format is the one of most lines."""
    path = dump_lines(tmp_path / "r.jsonl", [{"type": "message", "message": {"role": "x"}}, *rows()])
    assert read_recordings(path)[0].shape == "transcript rows"
    transcript = Transcript.open(tmp_path / "a", agent="a", cwd="/")
    for message in (user("q"), assistant("done")):
        transcript.message(message, "t")
    transcript.close()
    file = tmp_path / "a" / "session.jsonl"
    file.write_bytes(b"garbage\n" + file.read_bytes())
    (found,) = read_recordings(file)
    assert (found.shape, len(found.calls)) == ("orch session", 1)


@pytest.mark.parametrize(
    ("text", "error", "words"),
    [
        ("", ForeignFileError, "no conversation|not a readable recording"),
        ("# A page\n\nwith text", ForeignFileError, "not a readable recording"),
        ("\x00\x01\x02", ForeignFileError, "not a readable recording"),
        ('{"a": 1}', ForeignFileError, "not a readable recording"),
        ("[]", ForeignFileError, "not a readable recording"),
        ("[1, 2]", ForeignFileError, "not a readable recording"),
        ('[{"role": "user", "content": "only a question"}]', ForeignFileError, "no conversation"),
        ('{"role": "user", "content": "q"}\n{"role": "assista', DamagedError, "line 2"),
        ('{"role": "user", "content": "q"}\n7\n', DamagedError, "line 2"),
        ('[{"role": "user", "content": "q"}, {"role": "alien", "content": "q"}]', DamagedError, "message 1"),
        ('{"timestamp":"","type":"response_item","payload":{"role":"user"}}\n', ForeignFileError, "no conversation"),
        ('{"role": "model", "parts": [{"text": "q"}]}\n', ForeignFileError, "message 0"),
        ('{"type":"session"}\n{"type":"message","message":{"role":"assistant","content":7}}', DamagedError, "line 2"),
        ('{"type":"session","id":"s"}\n{"type":"compaction","summary":"x"}', DamagedError, "line 2"),
        ('{"uuid":"u","type":"user","message":{"role":"user"}}', ForeignFileError, "line 1"),
    ],
)  # fmt: skip
def test_unreadable_recording_is_named(tmp_path: Path, text: str, error: type[Exception], words: str) -> None:
    """The error distinguishes foreign from damaged files, and names the line or the message."""
    path = tmp_path / "file"
    path.write_text(text)
    with pytest.raises(error, match=words):
        read_recordings(path)


def test_missing_file_is_named(tmp_path: Path) -> None:
    """The error for a missing file contains its name, and a folder is an error too."""
    with pytest.raises(StoreError, match=r"none\.jsonl"):
        read_recordings(tmp_path / "none.jsonl")
    with pytest.raises(StoreError, match="directory"):
        read_recordings(tmp_path)
