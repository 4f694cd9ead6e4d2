"""The tool read_handle, which reads values under handles in parts."""

from __future__ import annotations

from typing import Annotated, Final, Literal

from msgspec import Meta

from ..api.base import ToolContext, ToolOutput, tool

__all__ = ["read_handle"]

MAX_READ: Final = 28_000

Op = Literal["read", "head", "tail", "slice", "summary", "schema", "search", "pin", "unpin"]


@tool
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
    """Read part of a text or value that was too long to show and is stored under a handle.

    A text is split into lines, a list into items, a table into rows, a dict into keys; all are numbered from 0.

    Args:
        handle: The handle, such as ".h_001".
        op: What to show: "read" characters from offset on, "head" or "tail" the first or last lines, "slice" the lines
            given by lines, "summary" a description, "schema" columns, keys or types, "search" matching lines. "pin"
            keeps the value when space is needed, "unpin" ends that.
        lines: The lines to slice or search, in Python syntax: "100:120", "-20:", "7".
        count: Number of lines for head and tail.
        offset: The first character to read; in that line if lines names a single one.
        limit: Maximum number of characters.
        search: A Python regular expression.
    """
    # This module is imported here, because nearly every preset has this tool, but few agents use it.
    from .read import ReadRequest, read_part

    return read_part(context, handle, ReadRequest(op, lines, count, offset, limit, search))
