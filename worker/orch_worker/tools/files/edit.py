"""Changing files: write_file, replace_in_file. Whole or not at all, below the agent's folder."""

from __future__ import annotations

from typing import Annotated, Final

from msgspec import Meta

from orch_protocol.core.text import scrub

from ..api.base import ToolContext, ToolError, ToolOutput, tool
from .write import open_target

__all__ = ["replace_in_file", "write_file"]

MAX_EDITED: Final = 20_000_000
MAX_LINES_NAMED: Final = 10


@tool(category="file", locks="path")
def write_file(context: ToolContext, path: str, content: str, append: bool = False) -> ToolOutput:
    """Write a text file whole, or add to its end. Folders are made as needed.

    Args:
        path: The file, relative to the working folder.
        content: The text to write.
        append: Whether to keep what is there and add to it.
    """
    data = scrub(content).encode()
    with open_target(context, path, make_folders=True) as target:
        if target.changed and not append:
            raise ToolError(
                f"{path!r} has changed since you read it, and not by you: nothing was written. Read it again first."
            )
        before = target.read(MAX_EDITED) if append else None
        target.write((before or b"") + data)
    done = "Added" if before is not None else "Wrote"
    return ToolOutput(f"{done} {len(data):,} bytes to {target.path!r}.", files_changed=(target.path,))


@tool(category="file", locks="path")
def replace_in_file(
    context: ToolContext,
    path: str,
    old_text: Annotated[str, Meta(min_length=1)],
    new_text: str,
    expected_count: Annotated[int, Meta(ge=1)] = 1,
) -> ToolOutput:
    """Replace a text in a file, every time it occurs. Nothing is changed unless it occurs as often as expected.

    Args:
        path: The file, relative to the working folder.
        old_text: The text as it stands in the file, without line numbers; enough of it to be found once only.
        new_text: The text to put in its place.
        expected_count: How often it occurs, all of which is replaced.
    """
    if old_text == new_text:
        raise ToolError("old_text and new_text are the same: nothing to change.")
    with open_target(context, path) as target:
        before = target.read(MAX_EDITED)
        if before is None:
            raise ToolError(f"File {path!r} does not exist.")
        try:
            text = before.decode()
        except UnicodeDecodeError as error:
            raise ToolError(f"{path!r} is not UTF-8 text (byte {error.start:,}): not changed.") from None
        old, new = scrub(old_text), scrub(new_text)
        # read_file shows lines without their ends, so a model cannot know that these end in two characters.
        if old not in text and "\r\n" in text:
            old, new = (part.replace("\r\n", "\n").replace("\n", "\r\n") for part in (old, new))
        lines = _lines(text, old)
        if len(lines) != expected_count:
            raise ToolError(_miscounted(path, text, old, lines, expected_count))
        target.write(text.replace(old, new).encode())
    where = _named(lines)
    return ToolOutput(f"Replaced in {target.path!r} at {where}.", files_changed=(target.path,))


def _lines(text: str, old: str) -> list[int]:
    """Return the numbers of the lines where `old` begins in `text`, without overlaps."""
    found, start, line, end = [], 0, 1, 0
    while (start := text.find(old, end)) >= 0:
        line += text.count("\n", end, start)
        found.append(line)
        end = start + len(old)
        line += old.count("\n")
    return found


def _named(lines: list[int]) -> str:
    shown = ", ".join(map(str, lines[:MAX_LINES_NAMED]))
    more = f" and {len(lines) - MAX_LINES_NAMED:,} more" if len(lines) > MAX_LINES_NAMED else ""
    return f"line{'s' if len(lines) > 1 else ''} {shown}{more}"


def _miscounted(path: str, text: str, old: str, lines: list[int], expected: int) -> str:
    if lines:
        times = f"{len(lines):,} times" if len(lines) > 1 else "once"
        return (
            f"old_text occurs {times} in {path!r}, at {_named(lines)}, and {expected} was expected: nothing was "
            "changed. Give more of the text around the one you mean, or expected_count to replace all."
        )
    near = _alike(text, old)
    hint = f" Line {near} differs in white space only." if near else " Read the file again: it may have changed."
    return f"old_text does not occur in {path!r}: nothing was changed.{hint}"


def _alike(text: str, old: str) -> int | None:
    """Return the number of the line where `old` would begin if white space did not count, if there is one."""
    wanted = [" ".join(line.split()) for line in old.strip().splitlines()]
    lines = [" ".join(line.split()) for line in text.splitlines()]
    first = wanted[0] if wanted else ""
    for number, line in enumerate(lines, 1):
        if line == first and lines[number - 1 : number - 1 + len(wanted)] == wanted:
            return number if first else None
    return None
