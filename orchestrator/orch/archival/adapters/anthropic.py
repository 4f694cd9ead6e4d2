"""Messages of the Anthropic Messages API."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from orch_worker.backends.formats import messages
from orch_worker.backends.formats.messages import CAN_BE_MARKED, LOOKBACK, MARKER, MARKERS
from orch_worker.backends.model_families import CLAUDE

from .base import ApiMessages, role_of, to_json_data

__all__ = ["FORMAT"]


def _mark(request: list[Any], record: int | None, *, listed: bool) -> list[Any]:
    """Return `request` with cache markers. If the caller has set markers, return `request`.

    The end of the request gets a marker, and the last record of an archive, because the next archiving keeps what is
    before. The list of archived turns gets the third marker. If the last response and its results have many blocks, the
    end of the previous request gets this marker instead, because the API would not find the previous request.
    """
    contents = [_content_of(message) for message in request]
    if any(map(_has_marker, contents)):
        return request
    response = next((index for index in reversed(range(len(request))) if role_of(request[index]) == "assistant"), 0)
    wanted = [_last_markable(contents, len(contents) - 1)]
    if sum(map(len, contents[response:])) >= LOOKBACK:
        wanted.append(_last_markable(contents, response - 1))
    if record is not None:
        list_index = record
        if listed:
            list_index = next(index for index in range(record, len(request)) if role_of(request[index]) == "user")
        in_record = len(contents[record]) - (listed and list_index == record)
        wanted += [_last_markable(contents, record, in_record), _last_markable(contents, list_index)]
    marked = list(request)
    for index, block in [place for place in dict.fromkeys(wanted) if place is not None][:MARKERS]:
        data = to_json_data(marked[index])
        content = [{"type": "text", "text": data["content"]}] if isinstance(data["content"], str) else data["content"]
        content = [*content[:block], content[block] | {"cache_control": MARKER}, *content[block + 1 :]]
        marked[index] = data | {"content": content}
    return marked


def _has_marker(blocks: Any) -> bool:
    """Return whether one of `blocks`, or a block in a result or in a document, has a cache marker."""
    if not isinstance(blocks, (list, tuple)):
        return False  # the text of a result, or the error of a tool of the server
    return any(
        _field(block, "cache_control") is not None
        or _has_marker(_field(block, "content"))
        or _has_marker(_field(_field(block, "source"), "content"))
        for block in blocks
    )


def _last_markable(contents: Sequence[Sequence[Any]], end: int, blocks: int | None = None) -> tuple[int, int] | None:
    """Return the positions of the last message, at most `end`, and of its last block that can carry a marker.

    Only the first `blocks` blocks of the message `end` are considered.
    """
    for index in range(end, -1, -1):
        content = contents[index][:blocks] if index == end else contents[index]
        for block in range(len(content) - 1, -1, -1):
            kind = _field(content[block], "type")
            if kind in CAN_BE_MARKED and (kind != "text" or _field(content[block], "text")):
                return index, block
    return None


def _content_of(message: Any) -> Sequence[Any]:
    content = _field(message, "content")
    return [{"type": "text", "text": content}] if isinstance(content, str) else content or ()


def _field(value: Any, name: str) -> Any:
    return value.get(name) if isinstance(value, dict) else getattr(value, name, None)


FORMAT: Final = ApiMessages(
    "anthropic",
    "anthropic",
    CLAUDE,
    messages.decode_message,
    messages.encode_message,
    messages.encode_tool,
    system_anywhere=True,  # The caller knows whether the model accepts system messages.
    mark=_mark,
)
