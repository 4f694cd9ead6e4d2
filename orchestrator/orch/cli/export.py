"""Archives written out for other tools: as JSON lines, or as Markdown."""

from __future__ import annotations

import os
import sys

from .failure import Failure
from .verb import dump

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Any, TextIO

    from .connection import Connection

__all__ = ["export", "markdown"]

LEFT_OUT = frozenset({"DamagedError", "StoreError"})
"""What one archive may suffer from without that the others cannot be had."""
STANDARD = "-"


def export(connection: Connection, rows: list[dict[str, Any]], output: str, format: str) -> dict[str, Any]:
    """Write the archives `rows` to the file `output`, whole or not at all, or to standard output.

    Returns how many `archives` and `messages` there were, and which are `unread`, with why.
    """
    told: dict[str, Any] = {"output": output, "archives": 0, "messages": 0, "unread": {}}
    pages = _pages(connection, rows, format, told)
    if output == STANDARD:
        _write(sys.stdout, pages)
        return told
    if os.path.exists(output) and not os.path.isfile(output):
        # A pipe, a device: there is nothing to put in its place.
        try:
            with open(output, "w", encoding="utf-8", errors="replace") as file:
                _write(file, pages)
        except OSError as error:
            raise Failure("OSError", f"{output} cannot be written: {error.strerror or error}") from error
        return told
    target = os.path.realpath(output)  # a link goes on leading where it leads
    beside = f"{target}.{os.getpid()}.tmp"
    try:
        # What was said to agents is for their user alone.
        private = os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        with open(private, "w", encoding="utf-8", errors="replace") as file:
            _write(file, pages)
            file.flush()
            os.fsync(file.fileno())
        os.replace(beside, target)
    except BaseException as error:
        try:
            os.unlink(beside)
        except OSError:
            pass  # it was never made
        if isinstance(error, OSError):
            raise Failure("OSError", f"{output} cannot be written: {error.strerror or error}") from error
        raise
    return told


def _write(file: TextIO, pages: Iterator[str]) -> None:
    for page in pages:
        file.write(page)


def _pages(connection: Connection, rows: list[dict[str, Any]], format: str, told: dict[str, Any]) -> Iterator[str]:
    for row in rows:
        try:
            messages = connection.call("read_archive", {"id": row["id"]})
        except Failure as failure:
            if failure.kind not in LEFT_OUT:
                raise
            told["unread"][row["id"]] = str(failure)
            continue
        told["archives"] += 1
        told["messages"] += len(messages)
        yield markdown(row, messages) if format == "md" else f"{dump({'holder': row, 'messages': messages})}\n"


def markdown(row: dict[str, Any], messages: list[dict[str, Any]]) -> str:
    """Return an archive as a section of a Markdown page."""
    title = " ".join(row["task"].split()) or row["kind"]
    about = f"`{row['id']}`, {row['kind']} of agent `{row['owner']}`, archived {row['created_at']}"
    parts = [f"# {title}", about]
    for number, message in enumerate(messages, 1):
        parts.append(f"## Entry {number}: {message['role']}")
        parts += [_block(block) for block in message["content"]]
    return "\n\n".join(parts) + "\n\n"


def _block(block: dict[str, Any]) -> str:
    match block["type"]:
        case "text":
            return str(block["text"])
        case "thinking":
            return _fenced(block["thinking"], "thinking")
        case "tool_use":
            return f"Call of `{block['name']}`:\n\n{_fenced(dump(block['input']), 'json')}"
        case "tool_result":
            said = "\n".join(part.get("text", "(image)") for part in block["content"])
            return f"{'Error' if block.get('is_error') else 'Result'}:\n\n{_fenced(said, 'text')}"
        case "image":
            return "(image)"
    return _fenced(dump(block), "json")


def _fenced(text: str, language: str) -> str:
    """Return `text` in a fence that nothing in it closes."""
    longest = run = 0
    for character in text:
        run = run + 1 if character == "`" else 0
        longest = max(longest, run)
    fence = "`" * max(3, longest + 1)
    return f"{fence}{language}\n{text}\n{fence}"
