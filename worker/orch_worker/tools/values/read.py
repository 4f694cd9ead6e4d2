"""Parts of what is kept under handles, as the model is shown them. Said in one answer, each within bounds."""

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

__all__ = ["MAX_MATCHES", "ReadRequest", "answer"]

MAX_FOUND: Final = 28_000
MAX_MATCHES: Final = 100
STEP: Final = 500
AROUND: Final = 150


class ReadRequest(Struct, frozen=True):
    """What is to be read, as read_handle is told."""

    op: str = "read"
    lines: str = ""
    count: int = 20
    offset: int = 0
    limit: int = 10_000
    search: str | None = None


def answer(context: ToolContext, handle: str, wanted: ReadRequest) -> ToolOutput:
    """Return what was asked for of what is under `handle`, and what it brings along. Raises ToolError."""
    values = context.own(ValueStore)
    stop_at = time.monotonic() + context.seconds * 0.8
    try:
        text = _answer(values, handle, wanted, stop_at)
        return ToolOutput(text, marks=values.marks(handle), local=values.get(handle).note.local)
    except OSError as error:
        raise ToolError(f"{handle} cannot be read: {error.strerror}.") from error


def _answer(values: ValueStore, handle: str, wanted: ReadRequest, stop_at: float) -> str:
    op, lines, pattern = wanted.op, wanted.lines, wanted.search
    if op in ("pin", "unpin"):
        kept = values.pin(handle, pinned=op == "pin")
        return f"{kept.handle} {'stays, whatever room it takes' if op == 'pin' else 'may go to make room'}."
    if op == "summary":
        kept = values.get(handle)
        return "\n".join([f"{kept.handle}: {kept.head}{', pinned' * kept.note.pinned}", *kept.note.lines])
    value = values.load(handle, again=True)
    if op == "schema":
        return "\n".join(value_schema(value)) or values.get(handle).head
    if pattern is None and op == "search":
        raise ToolError("search needs a pattern: pass a regular expression.")
    if isinstance(value, str) and not lines and op in ("read", "search"):
        return _of_text(handle, value, wanted, stop_at)
    return _of_lines(value, wanted, stop_at)


def _of_lines(value: Any, wanted: ReadRequest, stop_at: float) -> str:
    op, lines, count = wanted.op, wanted.lines, wanted.count
    shown = paged_view(value)
    start, stop = parse_line_range(lines or ":", shown.count)
    if wanted.search is not None:
        with PatternSearch(wanted.search, stop_at=stop_at) as seeker:
            return search_lines(shown, seeker, start, stop)
    if op == "head":
        start, stop = 0, min(count, shown.count)
    elif op == "tail":
        start, stop = max(shown.count - count, 0), shown.count
    elif op == "slice" and not lines:
        raise ToolError('slice needs lines, such as lines="100:120".')
    if start >= stop and shown.count:
        raise ToolError(f"There are {shown.count:,} {shown.unit}s, numbered from 0; none in {lines!r}.")
    if stop - start == 1 and op in ("slice", "read"):
        return part_of_line(shown, start, wanted.offset, wanted.limit)
    return lines_that_fit(shown, start, stop)


def _of_text(handle: str, text: str, wanted: ReadRequest, stop_at: float) -> str:
    offset = wanted.offset
    if offset and offset >= len(text):
        raise ToolError(f"{handle} has {len(text):,} characters, none from {offset:,} on.")
    if wanted.search is not None:
        return _search(text, wanted.search, offset, stop_at)
    end = min(offset + wanted.limit, len(text))
    more = f"; go on with offset={end}" if end < len(text) else ""
    return f"{text[offset:end]}\n[characters {offset:,} to {end:,} of {len(text):,}{more}]"


def _search(text: str, pattern: str, offset: int, stop_at: float) -> str:
    found: list[str] = []
    size = 0
    starts = re.compile(r"[^\n]+").finditer(text, offset)
    with PatternSearch(pattern, stop_at=stop_at) as seeker:
        while some := [(match.start(), match[0]) for match in islice(starts, STEP)]:
            for place, begin, end in seeker.among([line for _, line in some]):
                start, line = some[place]
                found.append(f"{start}: {line[max(0, begin - AROUND) : end + AROUND].strip()[: 4 * AROUND]}")
                size += len(found[-1])
                after = start + len(line) + 1
                if after < len(text) and (len(found) == MAX_MATCHES or size > MAX_FOUND):
                    return "\n".join([*found, f"[stopped here; go on with offset={after}]"])
            start, line = some[seeker.looked - 1]
            after = start + len(line) + 1
            if after < len(text) and seeker.is_over:
                return "\n".join([*found, f"[stopped here; go on with offset={after}]"])
    return "\n".join(found) or f"No match for {pattern!r} from character {offset:,} on."
