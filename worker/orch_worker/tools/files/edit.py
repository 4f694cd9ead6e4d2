"""The tools write_file and replace_in_file.

The tools change only files below the agent's folder. A file is changed completely or not at all.
"""

from __future__ import annotations

from typing import Annotated, Final

from msgspec import Meta

from orch_protocol.core.text import UTF8_MARK, scrub

from ..api.base import ToolContext, ToolError, ToolOutput, tool
from .write import open_target

__all__ = ["replace_in_file", "write_file"]

MAX_EDITED: Final = 20_000_000
MAX_LINES_NAMED: Final = 10


@tool(locks="path")
def write_file(context: ToolContext, path: str, content: str, append: bool = False) -> ToolOutput:
    """Write a whole text file, or append to it. Folders are created as needed.

    Args:
        path: The file, relative to the working folder.
        content: The text to write.
        append: Whether to append to the existing content.
    """
    data = scrub(content).encode()
    with open_target(context, path, make_folders=True) as target:
        if target.changed and not append:
            raise ToolError(
                f"{path!r} was changed by others after you read it: nothing was written. Read the file again first."
            )
        before = target.read(MAX_EDITED) if append else None
        if not append and target.has_mark() and not data.startswith(UTF8_MARK):
            data = UTF8_MARK + data  # read_file does not show the mark, so the model cannot know of it.
        target.write((before or b"") + data)
    verb = "Added" if before is not None else "Wrote"
    return ToolOutput(f"{verb} {len(data):,} bytes to {target.path!r}.", files_changed=(target.path,))


@tool(locks="path")
def replace_in_file(
    context: ToolContext,
    path: str,
    old_text: Annotated[str, Meta(min_length=1)],
    new_text: str,
    expected_count: Annotated[int, Meta(ge=1)] = 1,
) -> ToolOutput:
    """Replace all occurrences of a text in a file. Nothing changes unless the number of occurrences is as expected.

    Args:
        path: The file, relative to the working folder.
        old_text: The text exactly as in the file, without line numbers; long enough to occur only once.
        new_text: The replacement.
        expected_count: The number of occurrences, all of which are replaced.
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
        # read_file does not show line endings, so the model cannot know that the line endings are CRLF.
        if "\r\n" in text and (old not in text or text.count("\r\n") == text.count("\n")):
            old, new = (part.replace("\r\n", "\n").replace("\n", "\r\n") for part in (old, new))
        lines = _occurrence_lines(text, old)
        if len(lines) != expected_count:
            raise ToolError(_count_error(path, text, old, lines, expected_count))
        target.write(text.replace(old, new).encode())
    positions = _format_lines(lines)
    return ToolOutput(f"Replaced in {target.path!r} at {positions}.", files_changed=(target.path,))


def _occurrence_lines(text: str, old: str) -> list[int]:
    """Return the line numbers of the occurrences of `old` in `text`, without overlaps."""
    found, start, line, end = [], 0, 1, 0
    while (start := text.find(old, end)) >= 0:
        line += text.count("\n", end, start)
        found.append(line)
        end = start + len(old)
        line += old.count("\n")
    return found


def _format_lines(lines: list[int]) -> str:
    shown = ", ".join(map(str, lines[:MAX_LINES_NAMED]))
    more = f" and {len(lines) - MAX_LINES_NAMED:,} more" if len(lines) > MAX_LINES_NAMED else ""
    return f"line{'s' if len(lines) > 1 else ''} {shown}{more}"


def _count_error(path: str, text: str, old: str, lines: list[int], expected: int) -> str:
    if lines:
        times = f"{len(lines):,} times" if len(lines) > 1 else "once"
        return (
            f"old_text occurs {times} in {path!r}, at {_format_lines(lines)}, and {expected} was expected: nothing was "
            "changed. Give more of the text around the one you mean, or expected_count to replace all."
        )
    similar_line = _find_similar(text, old)
    hint = (
        f" Line {similar_line} differs in white space only."
        if similar_line
        else " Read the file again: it may have changed."
    )
    return f"old_text does not occur in {path!r}: nothing was changed.{hint}"


def _find_similar(text: str, old: str) -> int | None:
    """Return the line number of the first match of `old` when whitespace is ignored, or None."""
    wanted_lines = [" ".join(line.split()) for line in old.strip().splitlines()]
    lines = [" ".join(line.split()) for line in text.splitlines()]
    first = wanted_lines[0] if wanted_lines else ""
    for number, line in enumerate(lines, 1):
        if line == first and lines[number - 1 : number - 1 + len(wanted_lines)] == wanted_lines:
            return number if first else None
    return None
