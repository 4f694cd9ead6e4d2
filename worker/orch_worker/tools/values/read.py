"""Reads parts of values under handles for the model, with size limits."""

from __future__ import annotations

import re
import time
from itertools import islice
from typing import Any, Final

from msgspec import Struct

from ..api.base import ToolContext, ToolError, ToolOutput
from ..files.search import PatternSearch
from .paging import lines_that_fit, paged_view, parse_line_range, part_of_line
from .paging import search as search_lines
from .repr import value_schema
from .values import ValueStore

__all__ = ["MAX_MATCHES", "ReadRequest", "read_part"]

MAX_FOUND: Final = 28_000
MAX_MATCHES: Final = 100
CHUNK_LINES: Final = 500
CONTEXT_CHARS: Final = 150


class ReadRequest(Struct, frozen=True):
    """The arguments of read_handle."""

    op: str = "read"
    lines: str = ""
    count: int = 20
    offset: int = 0
    limit: int = 10_000
    search: str | None = None


def read_part(context: ToolContext, handle: str, request: ReadRequest) -> ToolOutput:
    """Return the requested part of the value under `handle`, with its taint labels.

    Raise ToolError if there is no such value or the arguments are invalid.
    """
    values = context.agent_object(ValueStore)
    stop_at = time.monotonic() + context.seconds * 0.8
    try:
        text = _read(values, handle, request, stop_at)
        return ToolOutput(text, marks=values.taint_labels(handle), local=values.get(handle).note.local)
    except OSError as error:
        raise ToolError(f"{handle} cannot be read: {error.strerror}.") from error


def _read(values: ValueStore, handle: str, request: ReadRequest, stop_at: float) -> str:
    op, lines, pattern = request.op, request.lines, request.search
    if op in ("pin", "unpin"):
        stored = values.pin(handle, pinned=op == "pin")
        if op == "pin":
            return f"{stored.handle} is pinned and is not deleted to free space."
        return f"{stored.handle} is no longer pinned and may be deleted to free space."
    if op == "summary":
        stored = values.get(handle)
        return "\n".join([f"{stored.handle}: {stored.head}{', pinned' * stored.note.pinned}", *stored.note.lines])
    value = values.load(handle, use_cache=True)
    if op == "schema":
        return "\n".join(value_schema(value)) or values.get(handle).head
    if pattern is None and op == "search":
        raise ToolError("`search` needs a pattern: pass a regular expression.")
    if isinstance(value, str) and not lines and op in ("read", "search"):
        return _read_text(handle, value, request, stop_at)
    return _read_lines(value, request, stop_at)


def _read_lines(value: Any, request: ReadRequest, stop_at: float) -> str:
    op, lines, count = request.op, request.lines, request.count
    view = paged_view(value)
    start, stop = parse_line_range(lines or ":", view.count)
    if request.search is not None:
        with PatternSearch(request.search, stop_at=stop_at) as pattern_search:
            return search_lines(view, pattern_search, start, stop)
    if op == "head":
        start, stop = 0, min(count, view.count)
    elif op == "tail":
        start, stop = max(view.count - count, 0), view.count
    elif op == "slice" and not lines:
        raise ToolError('slice needs lines, such as lines="100:120".')
    if start >= stop and view.count:
        raise ToolError(f"There are {view.count:,} {view.unit}s, numbered from 0; none in {lines!r}.")
    if stop - start == 1 and op in ("slice", "read"):
        return part_of_line(view, start, request.offset, request.limit)
    return lines_that_fit(view, start, stop)


def _read_text(handle: str, text: str, request: ReadRequest, stop_at: float) -> str:
    offset = request.offset
    if offset and offset >= len(text):
        raise ToolError(f"{handle} has {len(text):,} characters, none from {offset:,} on.")
    if request.search is not None:
        return _search(text, request.search, offset, stop_at)
    end = min(offset + request.limit, len(text))
    continuation = f"; go on with offset={end}" if end < len(text) else ""
    return f"{text[offset:end]}\n[characters {offset:,} to {end:,} of {len(text):,}{continuation}]"


def _search(text: str, pattern: str, offset: int, stop_at: float) -> str:
    found: list[str] = []
    size = 0
    starts = re.compile(r"[^\n]+").finditer(text, offset)
    with PatternSearch(pattern, stop_at=stop_at) as pattern_search:
        while chunk := [(match.start(), match[0]) for match in islice(starts, CHUNK_LINES)]:
            for index, match_start, match_end in pattern_search.search([line for _, line in chunk]):
                start, line = chunk[index]
                excerpt = line[max(0, match_start - CONTEXT_CHARS) : match_end + CONTEXT_CHARS].strip()
                found.append(f"{start}: {excerpt[: 4 * CONTEXT_CHARS]}")
                size += len(found[-1])
                next_offset = start + len(line) + 1
                if next_offset < len(text) and (len(found) == MAX_MATCHES or size > MAX_FOUND):
                    return "\n".join([*found, f"[stopped here; go on with offset={next_offset}]"])
            start, line = chunk[pattern_search.searched_lines - 1]
            next_offset = start + len(line) + 1
            if next_offset < len(text) and pattern_search.is_timed_out:
                return "\n".join([*found, f"[stopped here; go on with offset={next_offset}]"])
    return "\n".join(found) or f"No match for {pattern!r} from character {offset:,} on."
