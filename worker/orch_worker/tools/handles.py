"""Reading stashed results, part by part: read_handle."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from typing import Annotated, Final

from msgspec import Meta

from .base import ToolContext, ToolError, ToolOutput, tool
from .patterns import compile_pattern
from .stash import Stash

__all__ = ["read_handle"]

MAX_READ: Final = 28_000
MAX_MATCHES: Final = 100
MAX_SEARCHED_LINE: Final = 8_000
AROUND: Final = 150


@tool(category="memory")
def read_handle(
    context: ToolContext,
    handle: str,
    offset: Annotated[int, Meta(ge=0)] = 0,
    limit: Annotated[int, Meta(ge=1, le=MAX_READ)] = 10_000,
    search: str | None = None,
) -> ToolOutput:
    """Read part of a result that was too long to be shown and was kept whole under a handle.

    Args:
        handle: The handle, such as ".h_001".
        offset: The first character to read.
        limit: How many characters to read at most.
        search: Instead of a part, answer with the lines from offset on that match this Python regular expression,
            each with the offset it begins at.
    """
    stash = context.own(Stash)
    try:
        text, marks = stash.text(handle), stash.marks(handle)
    except OSError as error:
        raise ToolError(f"{handle} cannot be read: {error.strerror}.") from error
    if offset >= len(text):
        raise ToolError(f"{handle} has {len(text):,} characters, none from {offset:,} on.")
    if search is not None:
        return ToolOutput(_search(text, search, offset, time.monotonic() + context.seconds * 0.8), marks=marks)
    end = min(offset + limit, len(text))
    more = f"; go on with offset={end}" if end < len(text) else ""
    part = f"{text[offset:end]}\n[characters {offset:,} to {end:,} of {len(text):,}{more}]"
    return ToolOutput(part, marks=marks)


def _search(text: str, pattern: str, offset: int, stop_at: float) -> str:
    regex = compile_pattern(pattern)
    found: list[str] = []
    size = 0
    for start, line in _lines(text, offset):
        match = regex.search(line, 0, MAX_SEARCHED_LINE)
        if match:
            begin = max(0, match.start() - AROUND)
            found.append(f"{start}: {line[begin : match.end() + AROUND].strip()[: 4 * AROUND]}")
            size += len(found[-1])
        after = start + len(line) + 1
        if after < len(text) and (len(found) == MAX_MATCHES or size > MAX_READ or time.monotonic() > stop_at):
            return "\n".join([*found, f"[stopped here; go on with offset={after}]"])
    return "\n".join(found) or f"No match for {pattern!r} from character {offset:,} on."


def _lines(text: str, offset: int) -> Iterator[tuple[int, str]]:
    for match in re.compile(r"[^\n]+").finditer(text, offset):
        yield match.start(), match[0]
