"""Reading what is kept under handles, part by part: read_handle."""

from __future__ import annotations

from typing import Annotated, Final, Literal

from msgspec import Meta

from ..api.base import ToolContext, ToolOutput, tool

__all__ = ["read_handle"]

MAX_READ: Final = 28_000

Op = Literal["read", "head", "tail", "slice", "summary", "schema", "search", "pin", "unpin"]


@tool(category="memory")
def read_handle(
    context: ToolContext,
    handle: str,
    op: Op = "read",
    lines: str = "",
    count: Annotated[int, Meta(ge=1, le=1000)] = 20,
    offset: Annotated[int, Meta(ge=0)] = 0,
    limit: Annotated[int, Meta(ge=1, le=MAX_READ)] = 10_000,
    search: str | None = None,
) -> ToolOutput:
    """Read part of what was too long to be shown and is kept whole under a handle: a text, or a value of run_python.

    A text is lines, a list its items, a table its rows, a dict its keys: all numbered from 0.

    Args:
        handle: The handle, such as ".h_001".
        op: What to show: "read" characters from offset on, "head" or "tail" the first or last lines, "slice" those that
            lines says, "summary" what it is, "schema" its columns, keys or types, "search" the lines that match; "pin"
            lets it never go to make room, "unpin" does again.
        lines: Which lines to slice or search, as Python says it: "100:120", "-20:", "7".
        count: How many lines head and tail show.
        offset: The first character to read; of one line, when lines names one.
        limit: How many characters to read at most.
        search: The Python regular expression to search for.
    """
    # Imported by those who read: the tool is in nearly every preset, and few agents use it.
    from .read import ReadRequest, answer

    return answer(context, handle, ReadRequest(op, lines, count, offset, limit, search))
