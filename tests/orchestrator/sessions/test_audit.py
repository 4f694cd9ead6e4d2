"""The audit of a session: a row for each event, and remarks on damaged lines."""

from __future__ import annotations

import json
import typing
from pathlib import Path

import msgspec
import pytest

from orch.cli import run
from orch.sessions.audit import _ROW_BUILDERS, UNFINISHED, AuditRow, audit
from orch_protocol.core.errors import ForeignFileError, StoreError
from orch_protocol.core.messages import (
    Image,
    Message,
    Reply,
    Text,
    Thinking,
    ToolResult,
    ToolUse,
    Usage,
    assistant,
    user,
)
from orch_protocol.hooks.stages import ACTED, HookAction, HookActions
from orch_protocol.session import entries
from orch_worker.session.transcript import Transcript


@pytest.fixture
def session(tmp_path: Path) -> Path:
    """The file of a session with one turn: a call, its result and a reply."""
    transcript = Transcript.open(tmp_path / "a", agent="a", cwd="/srv")
    transcript.message(user("which port?"), "q1")
    replies = (Thinking("a file says it"), Text("I look."), ToolUse("c1", "read_file", {"path": "note.txt"}))
    transcript.message(Message("assistant", replies), "q1", Usage(1000, 50, cost_usd=0.25))
    transcript.message(Message("user", (ToolResult("c1", (Text("no such file"),), is_error=True),)), "q1")
    transcript.message(assistant("I cannot tell."), "q1", Usage(1100, 10, cost_usd=0.25))
    transcript.turn_end("q1", Reply("a", "q1", "I cannot tell.", usage=Usage(2100, 60, cost_usd=0.5)))
    transcript.close()
    return transcript.path


def audit_rows(path: Path) -> list[tuple[str, str, str]]:
    """Return kind, name and text of each row."""
    return [(row.what, row.name, row.text) for row in audit(path)]


def test_audit_has_a_row_per_event(session: Path) -> None:
    """Prompt, thinking, text, call, result and reply are rows, each with the number of its line."""
    rows = list(audit(session))
    assert audit_rows(session) == [
        ("session", "", "/srv"),
        ("prompt", "", "which port?"),
        ("thought", "", "a file says it"),
        ("said", "", "I look."),
        ("call", "read_file", '{"path":"note.txt"}'),
        ("result", "c1", "no such file"),
        ("said", "", "I cannot tell."),
        ("reply", "end_turn", "I cannot tell."),
    ]
    assert [row.line for row in rows] == [1, 2, 3, 3, 3, 4, 5, 6]
    assert [row.is_error for row in rows] == [False] * 5 + [True, False, False]
    assert {row.turn for row in rows[1:]} == {"q1"}
    assert not any(row.remark for row in rows)


def test_unexpected_hook_records_are_shown_as_stored(session: Path) -> None:
    """A hook record with unexpected data is a row of kind `custom`."""
    transcript = Transcript.open(session.parent, agent="a", cwd="/srv")
    transcript.custom(ACTED, {"turn": 3})
    transcript.custom(
        ACTED, msgspec.to_builtins(HookActions("q1", (HookAction("guard", "tool_call", ("block",), 0.001),), 2))
    )
    transcript.close()
    rows = [(row.what, row.name, row.text) for row in audit(session)][-3:]
    guard = ("hook", "guard", "tool_call: block, in 1.00 ms")
    assert rows == [("custom", ACTED, ""), guard, ("hook", "", "and 2 more")]


def test_usage_of_a_request_is_counted_once(session: Path) -> None:
    """Tokens and cost of a response are in its first row. The row of the reply has the totals of the turn."""
    rows = list(audit(session))
    assert [row.tokens for row in rows] == [0, 0, 1050, 0, 0, 0, 1110, 2160]
    assert [row.cost_usd for row in rows] == [None, None, 0.25, None, None, None, 0.25, 0.5]


def test_each_row_has_the_checksum_of_its_line(session: Path) -> None:
    lines = session.read_text().splitlines()
    assert all(lines[row.line - 1].endswith(f'"c":"{row.checksum}"}}') for row in audit(session))


def test_changed_line_is_reported_and_hides_no_other(session: Path) -> None:
    """The row of the changed line has the kind `damage`, and the other lines have their usual rows."""
    session.write_text(session.read_text().replace("which port?", "what else??"))
    rows = list(audit(session))
    assert [(row.line, row.remark) for row in rows if row.what == "damage"] == [(2, "its checksum does not match")]
    assert rows[-1].what == "reply"


def test_removed_line_is_reported(session: Path) -> None:
    """The next line cannot be verified, and its row has a remark."""
    lines = session.read_text().splitlines(keepends=True)
    session.write_text("".join(lines[:3] + lines[4:]))
    [row] = [row for row in audit(session) if row.remark]
    assert (row.line, row.remark) == (4, "follows lost lines, so that it cannot be checked")


def test_incomplete_append_is_reported(tmp_path: Path) -> None:
    """The lines of an append without its last line have a remark."""
    transcript = Transcript.open(tmp_path / "a", agent="a", cwd="/srv")
    transcript.seed([user("one"), assistant("two"), user("three")])
    transcript.close()
    lines = transcript.path.read_bytes().splitlines(keepends=True)
    transcript.path.write_bytes(b"".join(lines[:-1]))
    rows = list(audit(transcript.path))
    assert [(row.text, row.remark) for row in rows[1:]] == [("one", UNFINISHED), ("two", UNFINISHED)]


def test_every_entry_type_has_rows() -> None:
    """A new type of entry without rows fails this test."""
    kinds = set(typing.get_args(entries.Entry))
    assert kinds == set(_ROW_BUILDERS) | {entries.SessionHeader, entries.MessageEntry}


def test_images_are_shown_as_text(tmp_path: Path) -> None:
    """Images in prompts and in results are shown as their names."""
    transcript, image = Transcript.open(tmp_path / "a", agent="a", cwd="/srv"), Image("image/png", "", "a.png")
    transcript.message(user(["one", image]), "q1")
    transcript.message(Message("user", (ToolResult("c1", (Text("two"), image)),)), "q1")
    transcript.close()
    assert audit_rows(transcript.path)[1:] == [
        ("prompt", "", "one"),
        ("image", "", "[image: a.png]"),
        ("result", "c1", "two\n\n[image: a.png]"),
    ]


def test_other_entries_have_rows(tmp_path: Path) -> None:
    """Interruptions, labels and checkouts are rows."""
    transcript = Transcript.open(tmp_path / "a", agent="a", cwd="/srv")
    first = transcript.message(user("one"), "q1")
    transcript.turn_start("q2", "q1")
    transcript.label(first.id, "here")
    transcript.checkout(first.id)
    transcript.close()
    came_to = json.loads(transcript.path.read_text().splitlines()[-1])["fromId"]
    assert audit_rows(transcript.path)[2:] == [
        ("interrupted", "", "q1"),
        ("label", first.id, "here"),
        ("checkout", "", f"from {came_to}"),
    ]


def test_unknown_entry_is_shown_as_json(session: Path) -> None:
    transcript = Transcript.open(session.parent, agent="a", cwd="/srv")
    transcript.log.append(b'{"type":"vote","id":"x1","parentId":null,"timestamp":"now"}')
    transcript.close()
    assert audit_rows(session)[-1] == ("unknown", "", '{"type":"vote","id":"x1","parentId":null,"timestamp":"now"}')


def test_foreign_and_missing_files_are_refused(tmp_path: Path) -> None:
    """A file without a checksum chain, and a missing file, raise errors with the reason."""
    (tmp_path / "pi.jsonl").write_text('{"type":"session","version":3,"id":"x"}\n')
    with pytest.raises(ForeignFileError, match="it has no checksum chain"):
        list(audit(tmp_path / "pi.jsonl"))
    with pytest.raises(StoreError, match="No such file"):
        list(audit(tmp_path / "none.jsonl"))


def test_audit_command_prints_rows_or_json(session: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Damage exits with 1, and an unknown turn with 3."""
    assert run(["session", "audit", str(session)]) == 0
    assert "read_file" in capsys.readouterr().out
    assert run(["session", "audit", str(session), "--turn", "q1", "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)
    assert [row["what"] for row in rows] == ["prompt", "thought", "said", "call", "result", "said", "reply"]
    session.write_text(session.read_text().replace("no such file", "it says 4711"))
    assert run(["session", "audit", str(session)]) == 1
    assert "orch: line 4: its checksum does not match" in capsys.readouterr().err
    assert run(["session", "audit", "./none.jsonl"]) == 1
    assert run(["session", "audit", str(session), "--turn", "q9"]) == 3
    assert "the session has no query 'q9'" in capsys.readouterr().err


def test_row_json_omits_empty_fields() -> None:
    import msgspec

    assert msgspec.to_builtins(AuditRow(1, "prompt", text="x")) == {"line": 1, "what": "prompt", "text": "x"}
