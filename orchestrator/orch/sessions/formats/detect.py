"""Detect the format of a file and read its conversations. The file is not changed."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any, Final

import msgspec

from orch_protocol.core.errors import ConfigError, DamagedError, ForeignFileError, StoreError
from orch_worker.session.entry_codec import DECODE_ERRORS
from orch_worker.system.files import open_regular

from .claude_code import is_row, read_claude_code
from .codex import is_rollout_row, read_rollout
from .conversation import ImportedSession, Reading, with_edits
from .json_lines import complete_items, decoded, lines_of, rows_of, text_of_file
from .native import is_orch_line, read_orch_session
from .pi import read_session
from .plain_messages import messages_in, read_dialogues, read_document, read_rows

__all__ = ["read_conversation", "read_file", "read_with"]

MAX_BYTES: Final = 1 << 30
LOOK_AHEAD: Final = 100
"""Number of lines that decide about the format of a file whose first line is damaged."""


def read_file(path: Path, *, repair: bool = False) -> list[ImportedSession]:
    """Return the conversations in the file at `path`. The format is detected.

    Raises ForeignFileError for an unknown format, DamagedError for an unreadable line, and StoreError if the file
    cannot be read. If `repair` is True, unreadable lines are left out and reported in the result.
    """
    return read_with(Reading(path, repair=repair))


def read_with(reading: Reading) -> list[ImportedSession]:
    """Return the conversations in the file of `reading`, as `read_file` does. `reading` gets the repairs."""
    path = reading.path
    data = _bytes(path)
    try:
        return _read(text_of_file(data, reading), reading)
    except RecursionError:
        raise DamagedError(f"{path} is nested too deeply to be read") from None


def read_conversation(path: Path, which: int | None = None, *, repair: bool = False) -> ImportedSession:
    """Return the conversation number `which` in the file at `path`, as its model saw it last. Numbers start at 1.

    If `which` is None, the file must contain only one conversation. Raises ConfigError if the file contains several
    conversations, and the errors of `read_file`.
    """
    found = read_file(path, repair=repair)
    if which is None and len(found) > 1:
        raise ConfigError(
            f"{path} contains {len(found)} conversations; choose one by its number, from 1 to {len(found)}"
        )
    if not 1 <= (which or 1) <= len(found):
        raise ConfigError(f"{path} has no conversation number {which}; it contains {len(found)}")
    return with_edits(found[(which or 1) - 1])


def _bytes(path: Path) -> bytes:
    try:
        with open(open_regular(path, os.O_RDONLY), "rb") as file:
            if os.fstat(file.fileno()).st_size > MAX_BYTES:
                raise StoreError(f"cannot read {path}: it is larger than {MAX_BYTES >> 20} MiB")
            return file.read()
    except FileNotFoundError as error:
        raise StoreError(f"cannot read {path}: {error.strerror}") from error
    except ForeignFileError:
        if path.is_dir():
            raise StoreError(f"cannot read {path}: it is a directory") from None
        raise
    except OSError as error:
        raise StoreError(f"cannot read {path}: {error.strerror}") from error


def _read(data: bytes, reading: Reading) -> list[ImportedSession]:
    lines = lines_of(data)
    if not lines:
        raise reading.foreign_error("it is empty: no conversation")
    if any(is_orch_line(line) for _, line in lines[:LOOK_AHEAD]):
        return [read_orch_session(data, reading)]
    document = _document(data, len(lines), reading)
    if document is not None:
        return read_document(document, reading)
    rows = rows_of(data, reading)
    values = [row for _, row in rows]
    # A line of another program does not decide about the file.
    votes = {
        "session": (values[0].get("type") == "session") + sum(map(_is_entry, values)),
        "transcript": sum(map(is_row, values)),
        "rollout": sum(map(is_rollout_row, values)),
        "dialogues": sum(messages_in(row) is not None for row in values),
        "messages": sum("role" in row for row in values),
    }
    match max(votes, key=lambda kind: votes[kind]) if any(votes.values()) else "":
        case "session":
            return [read_session(rows, reading)]
        case "transcript":
            return [read_claude_code(rows, reading)]
        case "rollout":
            return [read_rollout(rows, reading)]
        case "dialogues":
            return read_dialogues(rows, reading)
        case "messages":
            return read_rows(rows, reading)
    raise reading.foreign_error()


def _is_entry(row: dict[str, Any]) -> bool:
    is_message = row.get("type") == "message" and isinstance(row.get("message"), dict)
    return is_message and ("parentId" in row or not is_row(row))


def _document(data: bytes, lines: int, reading: Reading) -> Any:
    """Return `data` as one JSON document. Return None if `data` is in JSON Lines format."""
    head = data.lstrip()[:1]
    if head not in (b"[", b"{"):
        return None
    value = decoded(data)
    if value is None and reading.repair:
        first_lines = lines_of(data)[:LOOK_AHEAD]
        if 2 * sum(isinstance(decoded(line), dict) for _, line in first_lines) > len(first_lines):
            return None
        if items := complete_items(data, reading):
            return items
    if value is None and head == b"[":
        raise DamagedError(
            f"{reading.path} is not a complete JSON array: {_decode_problem(data)}. Correct it, or get the file again"
        )
    if value is None and lines > 1 and not any(isinstance(decoded(line), dict) for _, line in lines_of(data)):
        raise DamagedError(f"{reading.path} is neither valid JSON nor JSON Lines: {_decode_problem(data)}")
    return None if isinstance(value, dict) and messages_in(value) is None else value


def _decode_problem(data: bytes) -> str:
    try:
        msgspec.json.decode(data)
    except DECODE_ERRORS as error:
        return str(error)
    return "it ends too early"
