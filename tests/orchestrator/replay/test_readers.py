"""Reading recordings: the known formats, and errors for other and damaged files."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from orch.replay.readers import read_recordings
from orch_protocol.core.errors import DamagedError, ForeignFileError, StoreError
from orch_protocol.core.messages import Message, Text, ToolResult, ToolUse, assistant, user
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
    place, context = found.contexts()[4]
    assert place == 9
    assert [message.role for message in context] == ["user", "user", "assistant", "user"]
    assert "SUMMED" in str(context[0])
    assert len(found.contexts()[3][1]) == 7


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
        ('{"role": "user", "content": "q"}\n7\n', ForeignFileError, "line 2"),
        ('[{"role": "user", "content": "q"}, {"role": "alien", "content": "q"}]', ForeignFileError, "message 1"),
        ('{"type":"session"}\n{"type":"message","message":{"role":"assistant","content":7}}', DamagedError, "line 2"),
        ('{"type":"session","id":"s"}\n{"type":"compaction","summary":"x"}', DamagedError, "line 2"),
        ('{"uuid":"u","type":"user","message":{"role":"user"}}', DamagedError, "line 1"),
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
