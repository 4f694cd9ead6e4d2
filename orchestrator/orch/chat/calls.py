"""A tool call as one line of a chat, with its outcome."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any, Final

from ..render import terminal
from ..render.progress import ABOUT, call_subject

__all__ = ["call_text", "event_subject", "finished_call"]

RESULT: Final = 80
FAILURE: Final = 200
"""Maximum lengths of outcomes in characters."""
SUCCESS_STATUS: Final = "[exit status 0]"


def call_text(name: str, input: Mapping[str, Any]) -> str:
    """Return the tool `name` and the argument that best describes the call."""
    return f"{terminal.safe(name)} {call_subject(input)}".rstrip()


def event_subject(text: str) -> Mapping[str, Any]:
    """Return the arguments of a call from the text of its event, which may end in the middle of the JSON."""
    try:
        input = json.loads(text)
    except ValueError:
        found = (re.search(rf'"{name}":("(?:[^"\\]|\\[^u]|\\u[0-9a-f]{{4}})*)', text) for name in ABOUT)
        values = {name: each[1] for name, each in zip(ABOUT, found, strict=True) if each is not None}
        return {name: json.loads(f'{value}"') for name, value in values.items()} or {"arguments": text}
    return input if isinstance(input, dict) else {"arguments": text}


def finished_call(call: str, result: str, *, is_error: bool) -> str:
    """Return the line of the call `call` with its result."""
    text = result.strip()
    if is_error:
        return f"{call} -> failed: {terminal.truncate_line(text, FAILURE)}"
    text = text.removesuffix(SUCCESS_STATUS).rstrip()
    lines = text.splitlines()
    if len(lines) > 1:
        return f"{call} -> ok, {terminal.pluralize(len(lines), 'line')}"
    return f"{call} -> ok: {terminal.truncate_line(text, RESULT)}" if text else f"{call} -> ok"
