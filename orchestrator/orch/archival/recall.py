"""The tools by which a model gets archived detail back: what they are called, and what they answer."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final

from orch_protocol.errors import AgentError, ConfigError, StoreError
from orch_protocol.messages import Message
from orch_worker.tokens import clip

from .search import Hit
from .summary import render_message

__all__ = ["TOOLS", "answer", "shown"]

SEARCH_CHARS: Final = 4_500
READ_CHARS: Final = 12_000
LIMIT: Final = 10

_TEXT: Final = {"type": "string"}
_NUMBER: Final = {"type": "integer", "minimum": 1}

TOOLS: Final = (
    (
        "search_archive",
        "Find text in archived turns of this conversation: words, paths, figures, errors. Gives id, entry, passage.",
        {"type": "object", "properties": {"query": _TEXT, "limit": _NUMBER}, "required": ["query"]},
    ),
    (
        "read_archive",
        "Show entries of an archived turn exactly as they were. Without first and last, from the beginning.",
        {
            "type": "object",
            "properties": {"id": _TEXT, "first": _NUMBER, "last": _NUMBER},
            "required": ["id"],
        },
    ),
)
"""Name, description and JSON schema of each."""


def answer(
    name: str,
    input: dict[str, Any],
    search: Callable[[str, int], Sequence[Hit]],
    read: Callable[[str, int, int | None], Sequence[Message]],
) -> str:
    """Return what the tool `name` says to `input`, as text of bounded size. What goes wrong is said in it."""
    if name not in {tool[0] for tool in TOOLS}:
        raise ConfigError(f"no archive tool {name!r}: there are {', '.join(tool[0] for tool in TOOLS)}")
    try:
        if name == "search_archive":
            return shown(search(_text(input, "query"), _number(input, "limit") or LIMIT))
        first = _number(input, "first") or 1
        return _read(first, read(_text(input, "id"), first, _number(input, "last")))
    except (AgentError, ConfigError, StoreError) as error:
        return f"Error: {error}"


def shown(hits: Sequence[Hit]) -> str:
    """Return `hits` as text of at most about 1,500 tokens."""
    if not hits:
        return "Nothing in the archives resembles that."
    parts: list[str] = []
    left = SEARCH_CHARS
    for hit in hits:
        part = f"{hit.id} entry {hit.entry} ({hit.task}){'' if hit.exact else ', similar'}:\n{hit.text}"
        if parts and len(part) > left:
            parts.append(f"{len(hits) - len(parts)} more: ask for something more particular")
            break
        parts.append(part)
        left -= len(part) + 2
    return "\n\n".join(parts)


def _read(first: int, messages: Sequence[Message]) -> str:
    parts: list[str] = []
    left = READ_CHARS
    for number, message in enumerate(messages, first):
        part = f"[entry {number}]\n{render_message(message)}"
        if parts and len(part) > left:
            parts.append(f"[more: read_archive with first={number}]")
            break
        parts.append(clip(part, READ_CHARS, "search_archive finds passages in it"))
        left -= len(part)
    return "\n\n".join(parts) or "There is no such entry."


def _text(input: dict[str, Any], key: str) -> str:
    value = input.get(key) if isinstance(input, dict) else None
    if not isinstance(value, str) or not value.strip():
        raise ConfigError(f"{key} must be text")
    return value


def _number(input: dict[str, Any], key: str) -> int | None:
    value = input.get(key)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise ConfigError(f"{key} must be a number from 1, not {value!r}")
    return value
