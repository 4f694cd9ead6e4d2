"""The tools search_archive and read_archive, with their definitions, argument checks and results."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final, TypeGuard

from orch_protocol.core.errors import AgentError, ConfigError, StoreError
from orch_protocol.core.messages import Message
from orch_protocol.services.archives.recall import SearchHit
from orch_worker.conversation.recalled import line_range, shown_entries, shown_hits

__all__ = ["TOOLS", "call_tool", "check_entries", "check_search"]

DEFAULT_LIMIT: Final = 10

_TEXT_SCHEMA: Final = {"type": "string"}
_NUMBER_SCHEMA: Final = {"type": "integer", "minimum": 1}

TOOLS: Final = (
    (
        "search_archive",
        "Find text in archived turns of this conversation: words, paths, figures, errors, or a regular expression.",
        {"type": "object", "properties": {"query": _TEXT_SCHEMA, "limit": _NUMBER_SCHEMA}, "required": ["query"]},
    ),
    (
        "read_archive",
        "Show entries of an archived turn as text, long ones shortened. lines=40-80: only these lines of entry first.",
        {
            "type": "object",
            "properties": {
                "id": _TEXT_SCHEMA,
                "first": _NUMBER_SCHEMA,
                "last": _NUMBER_SCHEMA,
                "lines": _TEXT_SCHEMA,
            },
            "required": ["id"],
        },
    ),
)
"""The name, description and JSON schema of each tool."""


def check_search(query: Any, limit: Any) -> None:
    """Raise ConfigError unless `query` is a string and `limit` an integer."""
    if not isinstance(query, str):
        raise ConfigError(f"query must be a string with search terms; got {query!r}")
    if not _is_integer(limit):
        raise ConfigError(f"limit must be an integer, the maximum number of passages; got {limit!r}")


def check_entries(id: Any, first: Any, last: Any) -> None:
    """Raise ConfigError for an invalid id or an invalid range of entries."""
    if not isinstance(id, str) or not id.strip():
        raise ConfigError(f"the id of an archive must be a non-empty string; got {id!r}")
    if not _is_integer(first) or not (last is None or _is_integer(last)):
        raise ConfigError(f"entries {first!r} to {last!r}: first must be an integer, and last an integer or None")
    if first < 1 or (last is not None and last < first):
        raise ConfigError(f"entries {first} to {last}: numbers start at 1, and first must not be greater than last")


def _is_integer(value: Any) -> TypeGuard[int]:
    return isinstance(value, int) and not isinstance(value, bool)


def call_tool(
    name: str,
    input: dict[str, Any],
    search: Callable[[str, int], Sequence[SearchHit]],
    read: Callable[[str, int, int | None], Sequence[Message]],
) -> str:
    """Return the result of the tool `name` as text of limited size. An error becomes part of the text."""
    if name not in [tool[0] for tool in TOOLS]:
        raise ConfigError(f"no archive tool {name!r}; the tools are {', '.join(tool[0] for tool in TOOLS)}")
    try:
        if name == "search_archive":
            query, limit = _required_text(input, "query"), _optional_number(input, "limit")
            return shown_hits(search(query, limit or DEFAULT_LIMIT), whole=limit is not None)
        id, first = _required_text(input, "id"), _optional_number(input, "first") or 1
        last, lines = _optional_number(input, "last"), input.get("lines")
        if lines is not None:
            line_range(lines if isinstance(lines, str) else str(lines))
            lines, last = str(lines), first
        return shown_entries(id, first, read(id, first, last), last, lines)
    except (AgentError, ConfigError, StoreError) as error:
        return f"Error: {error}"


def _required_text(input: dict[str, Any], key: str) -> str:
    value = input.get(key) if isinstance(input, dict) else None
    if not isinstance(value, str) or not value.strip():
        raise ConfigError(f"{key} must be text")
    return value


def _optional_number(input: dict[str, Any], key: str) -> int | None:
    value = input.get(key) if isinstance(input, dict) else None
    if value is None:
        return None
    if not _is_integer(value) or value < 1:
        raise ConfigError(f"{key} must be an integer of at least 1; got {value!r}")
    return value
