"""The audit of a session: each thing that happened is a row, and what is not as it was written says so."""

from __future__ import annotations

import json
import typing
from pathlib import Path

import msgspec
import pytest

from orch.cli import run
from orch.sessions.audit import _OTHERS, UNFINISHED, AuditRow, audit
from orch_protocol.core.errors import ForeignFileError, StoreError
from orch_protocol.core.messages import Message, Reply, Text, Thinking, ToolResult, ToolUse, Usage, assistant, user
from orch_protocol.hooks.stages import ACTED, HookAction, HookActions
from orch_protocol.session import entries
from orch_worker.session.transcript import Transcript


@pytest.fixture
def session(tmp_path: Path) -> Path:
    """A session file: a turn with a call, its result and a reply."""
    transcript = Transcript.open(tmp_path / "a", agent="a", cwd="/srv")
    transcript.message(user("which port?"), "q1")
    said = (Thinking("a file says it"), Text("I look."), ToolUse("c1", "read_file", {"path": "note.txt"}))
    transcript.message(Message("assistant", said), "q1", Usage(1000, 50, cost_usd=0.25))
    transcript.message(Message("user", (ToolResult("c1", (Text("no such file"),), is_error=True),)), "q1")
    transcript.message(assistant("I cannot tell."), "q1", Usage(1100, 10, cost_usd=0.25))
    transcript.turn_end("q1", Reply("a", "q1", "I cannot tell.", usage=Usage(2100, 60, cost_usd=0.5)))
    transcript.close()
    return transcript.path


def told(path: Path) -> list[tuple[str, str, str]]:
    """Return what happened, its name and its text."""
    return [(row.what, row.name, row.text) for row in audit(path)]


def test_everything_that_happened_is_a_row(session: Path) -> None:
    """Prompt, thought, words, call with arguments, result and reply, each on the line that has it."""
    rows = list(audit(session))
    assert told(session) == [
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


def test_what_is_kept_under_the_name_of_what_hooks_did_is_shown_as_kept(session: Path) -> None:
    """An entry that says something else than we would is no reason for an audit to fail."""
    transcript = Transcript.open(session.parent, agent="a", cwd="/srv")
    transcript.custom(ACTED, {"turn": 3})
    transcript.custom(
        ACTED, msgspec.to_builtins(HookActions("q1", (HookAction("guard", "tool_call", ("block",), 0.001),), 2))
    )
    transcript.close()
    rows = [(row.what, row.name, row.text) for row in audit(session)][-3:]
    guard = ("hook", "guard", "tool_call: block, in 1.00 ms")
    assert rows == [("custom", ACTED, ""), guard, ("hook", "", "and 2 more")]


def test_what_a_request_took_is_counted_once(session: Path) -> None:
    """A response of several parts has tokens and cost on the first of them; the reply has the turn's."""
    rows = list(audit(session))
    assert [row.tokens for row in rows] == [0, 0, 1050, 0, 0, 0, 1110, 2160]
    assert [row.cost_usd for row in rows] == [None, None, 0.25, None, None, None, 0.25, 0.5]


def test_each_row_names_the_checksum_of_its_line(session: Path) -> None:
    """The checksum is the one at the end of the line in the file."""
    lines = session.read_text().splitlines()
    assert all(lines[row.line - 1].endswith(f'"c":"{row.checksum}"}}') for row in audit(session))


def test_a_changed_line_is_told_and_hides_nothing_else(session: Path) -> None:
    """What was changed afterwards does not fit its checksum: that line is damage, the others are there."""
    session.write_text(session.read_text().replace("which port?", "what else??"))
    rows = list(audit(session))
    assert [(row.line, row.remark) for row in rows if row.what == "damage"] == [(2, "its checksum does not match")]
    assert rows[-1].what == "reply"


def test_a_line_that_was_taken_out_is_told(session: Path) -> None:
    """Behind lines that are gone nothing can be checked, and that is said."""
    lines = session.read_text().splitlines(keepends=True)
    session.write_text("".join(lines[:3] + lines[4:]))
    [row] = [row for row in audit(session) if row.remark]
    assert (row.line, row.remark) == (4, "follows lost lines, so that it cannot be checked")


def test_a_write_that_was_never_finished_is_told(tmp_path: Path) -> None:
    """Lines of an append whose end is missing happened, and are not part of the conversation."""
    transcript = Transcript.open(tmp_path / "a", agent="a", cwd="/srv")
    transcript.seed([user("one"), assistant("two"), user("three")])
    transcript.close()
    lines = transcript.path.read_bytes().splitlines(keepends=True)
    transcript.path.write_bytes(b"".join(lines[:-1]))
    rows = list(audit(transcript.path))
    assert [(row.text, row.remark) for row in rows[1:]] == [("one", UNFINISHED), ("two", UNFINISHED)]


def test_every_type_of_entry_has_rows() -> None:
    """No type of entry is left out."""
    kinds = set(typing.get_args(entries.Entry))
    assert kinds == set(_OTHERS) | {entries.SessionHeader, entries.MessageEntry}


def test_other_entries_say_what_they_are(tmp_path: Path) -> None:
    """Checkouts, labels, names and interrupted turns are rows too."""
    transcript = Transcript.open(tmp_path / "a", agent="a", cwd="/srv")
    first = transcript.message(user("one"), "q1")
    transcript.turn_start("q2", "q1")
    transcript.label(first.id, "here")
    transcript.checkout(first.id)
    transcript.close()
    came_to = json.loads(transcript.path.read_text().splitlines()[-1])["fromId"]
    assert told(transcript.path)[2:] == [
        ("interrupted", "", "q1"),
        ("label", first.id, "here"),
        ("checkout", "", f"from {came_to}"),
    ]


def test_an_entry_of_a_later_version_is_shown_as_it_is(session: Path) -> None:
    """What this version does not know is a row with its JSON."""
    transcript = Transcript.open(session.parent, agent="a", cwd="/srv")
    transcript.log.append(b'{"type":"vote","id":"x1","parentId":null,"timestamp":"now"}')
    transcript.close()
    assert told(session)[-1] == ("unknown", "", '{"type":"vote","id":"x1","parentId":null,"timestamp":"now"}')


def test_files_that_are_none_of_ours_are_refused(tmp_path: Path) -> None:
    """A file without a chain, and one that is not there, are errors that say so."""
    (tmp_path / "pi.jsonl").write_text('{"type":"session","version":3,"id":"x"}\n')
    with pytest.raises(ForeignFileError, match="it has no checksum chain"):
        list(audit(tmp_path / "pi.jsonl"))
    with pytest.raises(StoreError, match="No such file"):
        list(audit(tmp_path / "none.jsonl"))


def test_from_the_shell(session: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A file is shown as rows or as JSON; with damage the exit code is 1 and the line is named."""
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
    assert "it has no query 'q9'" in capsys.readouterr().err


def test_a_row_is_data() -> None:
    """Fields that say nothing are left out of the JSON."""
    import msgspec

    assert msgspec.to_builtins(AuditRow(1, "prompt", text="x")) == {"line": 1, "what": "prompt", "text": "x"}
