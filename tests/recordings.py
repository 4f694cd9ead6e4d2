"""Recorded sessions in the formats of other programs, created for tests."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

__all__ = ["chat", "dump_lines", "pi", "rows"]


def dump_lines(path: Path, lines: list[Any]) -> Path:
    """Write `lines` as JSON lines to `path` and return it."""
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path


def pi(turns: int, steps: int = 3, size: int = 400) -> list[dict[str, Any]]:
    """Return a session of pi with `turns` prompts and `steps` calls for each prompt.

    The session contains usage. Message 3 states what it read.
    """
    lines: list[dict[str, Any]] = [
        {"type": "session", "id": "s", "timestamp": "2026-01-01T00:00:00.000Z", "cwd": "/srv"}
    ]
    context = 2000
    clock = 0

    def add(message: dict[str, Any]) -> None:
        nonlocal clock
        clock += 20
        lines.append(
            {
                "type": "message",
                "timestamp": f"2026-01-01T{clock // 3600:02d}:{clock // 60 % 60:02d}:{clock % 60:02d}Z",
                "message": message,
            }
        )

    def reply(content: list[dict[str, Any]]) -> None:
        usage = {"input": 10, "output": 30, "cacheRead": context - 10, "cacheWrite": 0}
        add({"role": "assistant", "content": content, "api": "some-api", "usage": usage, "stopReason": "stop"})

    for turn in range(turns):
        add({"role": "user", "content": [{"type": "text", "text": f"Fix module {turn} " + "now " * 20}]})
        context += 25
        for step in range(steps):
            id = f"c{turn}_{step}"
            command = f"grep -n handler_{turn}_{step} src/mod_{turn}.py"
            reply([{"type": "toolCall", "id": id, "name": "bash", "arguments": {"command": command}}])
            text = f"/srv/src/mod_{turn}/deep_{step}.py took {turn}{step}77 ms\n" + "word and word " * (size // 14)
            add(
                {
                    "role": "toolResult",
                    "toolCallId": id,
                    "toolName": "bash",
                    "content": [{"type": "text", "text": text}],
                    "isError": False,
                }
            )
            context += 25 + len(text) // 4
        reply([{"type": "text", "text": f"Module {turn} is fixed."}])
        context += 10
    return lines


def rows() -> list[dict[str, Any]]:
    """Return the rows of a transcript. One reply consists of three rows with a result between them."""
    usage = {"input_tokens": 3, "cache_read_input_tokens": 9000, "cache_creation_input_tokens": 500, "output_tokens": 7}

    def row(type: str, content: Any, **message: Any) -> dict[str, Any]:
        fields = {"role": type, "content": content} | message
        return {"type": type, "uuid": "u", "sessionId": "s", "timestamp": "2026-01-01T00:00:00Z", "message": fields}

    use = {"type": "tool_use", "id": "a", "name": "Bash", "input": {"command": "ls"}, "caller": {"type": "direct"}}
    return [
        {"type": "file-history-snapshot", "messageId": "x"},
        row("user", "start it"),
        row("assistant", [{"type": "text", "text": "Yes."}], id="m1", usage=usage, model="claude-x"),
        row("assistant", [use], id="m1", usage=usage | {"output_tokens": 40}),
        {"type": "progress", "uuid": "p"},
        row("user", [{"type": "tool_result", "tool_use_id": "a", "content": "a.py"}]),
        row("assistant", [use | {"id": "b"}], id="m1", usage=usage),
        row("user", [{"type": "tool_result", "tool_use_id": "b", "content": "b.py"}]),
        row("assistant", [{"type": "text", "text": "Done."}], id="m2", usage=usage) | {"isSidechain": True},
        row("assistant", [{"type": "text", "text": "Done."}], id="m3", usage=usage | {"cache_read_input_tokens": 9700}),
    ]


def chat(prompts: int) -> list[dict[str, Any]]:
    """Return chat messages with a system prompt and a call in each turn."""
    messages: list[dict[str, Any]] = [{"role": "system", "content": "Be good."}]
    for number in range(prompts):
        call = {"id": f"c{number}", "type": "function", "function": {"name": "find", "arguments": '{"n": 123}'}}
        messages += [
            {"role": "user", "content": f"Question {number}"},
            {"role": "assistant", "content": None, "tool_calls": [call]},
            {"role": "tool", "tool_call_id": f"c{number}", "name": "find", "content": "nothing"},
            {"role": "assistant", "content": f"Answer {number}"},
        ]
    return messages
