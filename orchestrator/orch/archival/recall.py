"""The tools by which a model gets archived detail back: what they are called, and what they answer."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final, TypeGuard

from orch_protocol.core.errors import AgentError, ConfigError, StoreError
from orch_protocol.core.messages import Message
from orch_protocol.services.recall import SearchHit
from orch_worker.conversation.recalled import shown_entries, shown_hits

__all__ = ["TOOLS", "answer", "check_entries", "check_search"]

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


def check_search(query: Any, limit: Any) -> None:
    """Raise ConfigError for what can be neither looked for nor counted."""
    if not isinstance(query, str):
        raise ConfigError(f"query must be a string with search terms; got {query!r}")
    if not _is_number(limit):
        raise ConfigError(f"limit is how many places there may be, a number, not {limit!r}")


def check_entries(id: Any, first: Any, last: Any) -> None:
    """Raise ConfigError for what names no entries of an archive."""
    if not isinstance(id, str) or not id.strip():
        raise ConfigError(f"an archive goes by its id, a text, not {id!r}")
    if not _is_number(first) or not (last is None or _is_number(last)):
        raise ConfigError(f"entries {first!r} to {last!r}: they are numbers, and None is the end")
    if first < 1 or (last is not None and last < first):
        raise ConfigError(f"entries {first} to {last}: they count from 1, and the first is not behind the last")


def _is_number(value: Any) -> TypeGuard[int]:
    return isinstance(value, int) and not isinstance(value, bool)


def answer(
    name: str,
    input: dict[str, Any],
    search: Callable[[str, int], Sequence[SearchHit]],
    read: Callable[[str, int, int | None], Sequence[Message]],
) -> str:
    """Return what the tool `name` says to `input`, as text of bounded size. What goes wrong is said in it."""
    if name not in [tool[0] for tool in TOOLS]:
        raise ConfigError(f"no archive tool {name!r}: there are {', '.join(tool[0] for tool in TOOLS)}")
    try:
        if name == "search_archive":
            return shown_hits(search(_text(input, "query"), _number(input, "limit") or LIMIT))
        first = _number(input, "first") or 1
        return shown_entries(first, read(_text(input, "id"), first, _number(input, "last")))
    except (AgentError, ConfigError, StoreError) as error:
        return f"Error: {error}"


def _text(input: dict[str, Any], key: str) -> str:
    value = input.get(key) if isinstance(input, dict) else None
    if not isinstance(value, str) or not value.strip():
        raise ConfigError(f"{key} must be text")
    return value


def _number(input: dict[str, Any], key: str) -> int | None:
    value = input.get(key) if isinstance(input, dict) else None
    if value is None:
        return None
    if not _is_number(value) or value < 1:
        raise ConfigError(f"{key} must be a number from 1, not {value!r}")
    return value
