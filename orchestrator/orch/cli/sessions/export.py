"""Export of archives as JSON lines or Markdown."""

from __future__ import annotations

import sys

from ...client.failure import CommandError
from ...config.output_file import write_output_file
from ...render.terminal import to_json
from ...sessions.html_page import markdown_block

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Any

    from ...client.connection import Connection

__all__ = ["export", "markdown"]

LEFT_OUT = frozenset({"DamagedError", "StoreError"})
"""Errors that affect one archive only. The export continues with the other archives."""
STANDARD = "-"


def export(connection: Connection, rows: list[dict[str, Any]], output: str, format: str) -> dict[str, Any]:
    """Write the archives `rows` to the file `output`, atomically, or to standard output.

    Return the numbers of exported `archives` and `messages`, and the `unread` archives with their errors.
    """
    result: dict[str, Any] = {"output": output, "archives": 0, "messages": 0, "unread": {}}
    pages = _pages(connection, rows, format, result)
    if output == STANDARD:
        sys.stdout.writelines(pages)
        return result
    try:
        write_output_file(output, pages)
    except OSError as error:
        raise CommandError("OSError", f"cannot write {output}: {error.strerror or error}") from error
    return result


def _pages(connection: Connection, rows: list[dict[str, Any]], format: str, result: dict[str, Any]) -> Iterator[str]:
    for row in rows:
        try:
            messages = connection.call("read_archive", {"id": row["id"]})
        except CommandError as failure:
            if failure.kind not in LEFT_OUT:
                raise
            result["unread"][row["id"]] = str(failure)
            continue
        result["archives"] += 1
        result["messages"] += len(messages)
        yield markdown(row, messages) if format == "md" else f"{to_json({'holder': row, 'messages': messages})}\n"


def markdown(row: dict[str, Any], messages: list[dict[str, Any]]) -> str:
    """Return an archive as a section of a Markdown page."""
    title = " ".join(row["task"].split()) or row["kind"]
    subtitle = f"`{row['id']}`, {row['kind']} of agent `{row['owner']}`, archived {row['created_at']}"
    parts = [f"# {title}", subtitle]
    for number, message in enumerate(messages, 1):
        parts.append(f"## Entry {number}: {message['role']}")
        parts += map(markdown_block, message["content"])
    return "\n\n".join(parts) + "\n\n"
