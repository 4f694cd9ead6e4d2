"""A generated session of a coding agent for `quality.py`. It is always the same.

`quality_sample/turns.json` contains 12 prompts and the steps of the agent, and `quality_sample/questions.json` contains
20 questions about wishes of the user, code, errors and the state at the end. Half of them use other words than the
session. The files that the agent reads are filled with generated functions, so that the session has about 54,000
tokens.
"""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

__all__ = ["QUESTIONS", "session"]

SAMPLE = Path(__file__).resolve().parent / "quality_sample"
QUESTIONS = SAMPLE / "questions.json"
FUNCTIONS = 76
NOUNS = (
    "level",
    "sample",
    "gauge",
    "tide",
    "basin",
    "record",
    "window",
    "offset",
    "sensor",
    "packet",
    "marker",
    "buffer",
)
VERBS = (
    "read",
    "scale",
    "clamp",
    "merge",
    "sort",
    "shift",
    "check",
    "load",
    "store",
    "count",
    "trim",
    "round",
    "split",
)


def session() -> list[dict[str, Any]]:
    """Return the messages of the session in the format of OpenAI's chat completions."""
    messages: list[dict[str, Any]] = []
    for turn, given in enumerate(json.loads((SAMPLE / "turns.json").read_text())):
        messages.append({"role": "user", "content": given["prompt"]})
        for number, step in enumerate(given["steps"]):
            name, arguments, result = call(step)
            id = f"call_{turn}_{number}"
            function = {"name": name, "arguments": json.dumps(arguments)}
            calls = [{"id": id, "type": "function", "function": function}]
            messages.append({"role": "assistant", "content": None, "tool_calls": calls})
            messages.append({"role": "tool", "tool_call_id": id, "content": result})
        messages.append({"role": "assistant", "content": given["answer"]})
    return messages


def call(step: dict[str, Any]) -> tuple[str, dict[str, str], str]:
    """Return the tool, the arguments and the result of a step."""
    match step:
        case {"do": "read", "path": path, "content": content}:
            return "read_file", {"path": path}, source(path, content)
        case {"do": "edit", "path": path, "old": old, "new": new}:
            return "edit_file", {"path": path, "old_string": old, "new_string": new}, f"edited {path}"
        case {"do": "write", "path": path, "content": content}:
            return "write_file", {"path": path, "content": content}, f"wrote {path}"
        case {"do": "refused", "command": command, "result": result}:
            return "bash", {"command": command}, result
        case {"do": "run", "command": command, "output": output, "exit": code}:
            return "bash", {"command": command}, f"{output}\n(exit {code})" if code else output
    raise ValueError(f"unknown step {step!r}")


def source(path: str, content: str) -> str:
    """Return a Python file of about 4,000 tokens with the lines `content` in the middle."""
    chance = random.Random(path)
    parts = [f'"""{path}: part of the tide station."""']
    for number in range(FUNCTIONS):
        verb, noun, other = chance.choice(VERBS), chance.choice(NOUNS), chance.choice(NOUNS)
        parts.append(
            f"def {verb}_{noun}_{number}({noun}s: list[float], {other}_limit: float = {chance.randint(100, 999) / 10})"
            f" -> list[float]:\n"
            f'    """Return the {noun}s that are below the limit of the {other}."""\n'
            f"    kept = [{noun} * {chance.randint(2, 97)} for {noun} in {noun}s if {noun} < {other}_limit]\n"
            f"    return kept or [{other}_limit]"
        )
    parts.insert(FUNCTIONS // 2, content)
    return "\n\n\n".join(parts) + "\n"
