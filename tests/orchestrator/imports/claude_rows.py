"""Writes transcripts for tests of imports."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

__all__ = ["add_rows", "add_turn", "write_session"]


def write_session(path: Path, *prompts: str) -> Path:
    """Write a transcript with one turn for each prompt."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("")
    for prompt in prompts:
        add_turn(path, prompt)
    return path


def add_turn(path: Path, prompt: str) -> None:
    """Append a turn: a prompt, a call with its result, and an answer."""
    call = {"type": "tool_use", "id": f"call-{prompt}", "name": "Bash", "input": {"command": f"cat {prompt}.txt"}}
    result = {"type": "tool_result", "tool_use_id": f"call-{prompt}", "content": f"output of {prompt}"}
    add_rows(
        path,
        {"role": "user", "content": prompt},
        {"role": "assistant", "id": f"a-{prompt}", "content": [call]},
        {"role": "user", "content": [result]},
        {"role": "assistant", "id": f"b-{prompt}", "content": [{"type": "text", "text": f"answer to {prompt}"}]},
    )


def add_rows(path: Path, *messages: dict[str, Any]) -> None:
    """Append a row for each message. The minutes of their times are their positions in the file."""
    count = len(path.read_bytes().splitlines())
    rows = [
        {
            "type": message["role"],
            "uuid": f"{path.stem}-{number}",
            "parentUuid": f"{path.stem}-{number - 1}" if number else None,
            "sessionId": path.stem,
            "cwd": "/srv/project",
            "timestamp": f"2026-03-05T{number // 60:02d}:{number % 60:02d}:00.000Z",
            "message": message,
        }
        for number, message in enumerate(messages, count)
    ]
    with path.open("a") as file:
        file.writelines(f"{json.dumps(row)}\n" for row in rows)
