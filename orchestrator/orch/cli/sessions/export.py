"""Archives written out for other tools: as JSON lines, or as Markdown."""

from __future__ import annotations

import sys

from ...client.failure import CommandError
from ...config.output_file import write_out
from ...render.terminal import to_json
from ...sessions.html_page import block_of_page

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Any

    from ...client.connection import Connection

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
        sys.stdout.writelines(pages)
        return told
    try:
        write_out(output, pages)
    except OSError as error:
        raise CommandError("OSError", f"{output} cannot be written: {error.strerror or error}") from error
    return told


def _pages(connection: Connection, rows: list[dict[str, Any]], format: str, told: dict[str, Any]) -> Iterator[str]:
    for row in rows:
        try:
            messages = connection.call("read_archive", {"id": row["id"]})
        except CommandError as failure:
            if failure.kind not in LEFT_OUT:
                raise
            told["unread"][row["id"]] = str(failure)
            continue
        told["archives"] += 1
        told["messages"] += len(messages)
        yield markdown(row, messages) if format == "md" else f"{to_json({'holder': row, 'messages': messages})}\n"


def markdown(row: dict[str, Any], messages: list[dict[str, Any]]) -> str:
    """Return an archive as a section of a Markdown page."""
    title = " ".join(row["task"].split()) or row["kind"]
    about = f"`{row['id']}`, {row['kind']} of agent `{row['owner']}`, archived {row['created_at']}"
    parts = [f"# {title}", about]
    for number, message in enumerate(messages, 1):
        parts.append(f"## Entry {number}: {message['role']}")
        parts += map(block_of_page, message["content"])
    return "\n\n".join(parts) + "\n\n"
