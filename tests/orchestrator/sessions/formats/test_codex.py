"""Reading rollout files of Codex."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from orch.sessions.formats.conversation import ImportedSession
from orch.sessions.formats.detect import read_conversation
from orch_protocol.core.errors import DamagedError
from orch_protocol.core.messages import Text, ToolResult, ToolUse, Usage, text_of
from orch_protocol.session.entries import MessageEntry, Origin


def row(kind: str, **payload: Any) -> dict[str, Any]:
    """Return a row of a rollout file."""
    return {"timestamp": "2026-03-05T10:00:00.123Z", "type": kind, "payload": payload}


def said(role: str, text: str) -> dict[str, Any]:
    """Return the row of a message."""
    kind = "output_text" if role == "assistant" else "input_text"
    return row("response_item", type="message", role=role, content=[{"type": kind, "text": text}])


def usage(given: int, cached: int, output: int) -> dict[str, Any]:
    """Return a row with the usage of the last response."""
    tokens = {"input_tokens": given, "cached_input_tokens": cached, "output_tokens": output}
    return row("event_msg", type="token_count", info={"last_token_usage": tokens, "total_token_usage": tokens})


def read(path: Path, *rows: dict[str, Any], repair: bool = False) -> ImportedSession:
    """Return the conversation in a file with `rows`."""
    file = path / "rollout-2026-03-05.jsonl"
    file.write_text("".join(f"{json.dumps(each)}\n" for each in rows))
    return read_conversation(file, repair=repair)


def messages(found: ImportedSession) -> list[MessageEntry]:
    """Return the messages of a conversation."""
    return [entry for entry in found.entries if isinstance(entry, MessageEntry)]


def test_items_of_a_response_are_one_message(tmp_path: Path) -> None:
    """Reasoning, text and calls form one reply with the model and usage. Events for the display are left out."""
    found = read(
        tmp_path,
        row("session_meta", id="1", cwd="/srv/project"),
        said("user", "Which port?"),
        row("event_msg", type="user_message", message="Which port?"),
        row("turn_context", cwd="/srv/project", model="gpt-5-codex"),
        row("response_item", type="reasoning", summary=[], encrypted_content="x"),
        said("assistant", "I look."),
        row("response_item", type="function_call", name="shell", call_id="c1", arguments='{"command": ["ls"]}'),
        row("response_item", type="function_call_output", call_id="c1", output="config.toml"),
        usage(1000, 800, 30),
        said("assistant", "4711"),
        usage(1100, 1000, 5),
    )
    prompt, reply, result, answer = messages(found)
    assert (found.cwd, found.shape, prompt.timestamp) == ("/srv/project", "rollout", "2026-03-05T10:00:00.123Z")
    assert text_of(reply.message) == "I look."
    assert isinstance(reply.message.content[2], ToolUse)
    assert reply.message.content[2].input == {"command": ["ls"]}
    assert result.message.content == (ToolResult("c1", (Text("config.toml"),)),)
    assert reply.origin == Origin(model="gpt-5-codex", usage=Usage(200, 30, 800, cost_known=False))
    assert answer.origin == Origin(model="gpt-5-codex", usage=Usage(100, 5, 1000, cost_known=False))


def test_other_kinds_of_calls_are_calls(tmp_path: Path) -> None:
    """Patches, local shells and outputs of earlier versions keep their text."""
    found = read(
        tmp_path,
        said("user", "Edit."),
        row("response_item", type="custom_tool_call", call_id="p", name="apply_patch", input="*** Update File: a.py"),
        row("response_item", type="custom_tool_call_output", call_id="p", output="Success"),
        row("response_item", type="local_shell_call", call_id="s", action={"type": "exec", "command": ["pwd"]}),
        row("response_item", type="function_call_output", call_id="s", output={"content": "/p", "success": True}),
        row("response_item", type="ghost_snapshot", ghost_commit={}),
    )
    calls = [block for entry in messages(found) for block in entry.message.content if isinstance(block, ToolUse)]
    assert [(call.name, call.input) for call in calls] == [
        ("apply_patch", {"input": "*** Update File: a.py"}),
        ("shell", {"type": "exec", "command": ["pwd"]}),
    ]
    results = [block for entry in messages(found) for block in entry.message.content if isinstance(block, ToolResult)]
    assert [result.content[0].text for result in results] == ["Success", "/p"]


def test_damaged_item_is_an_error_or_is_left_out(tmp_path: Path) -> None:
    """The error names the line. With repair, the other items are read."""
    rows = [row("session_meta", id="1"), said("user", "Hi"), row("response_item", type=7)]
    with pytest.raises(DamagedError, match="line 3 is not an item"):
        read(tmp_path, *rows)
    found = read(tmp_path, *rows, {"type": "response_item"}, repair=True)
    assert len(messages(found)) == 1
    assert len(found.repairs) == 2
