"""Reads session files: whole sessions, the last turn, or the header. The functions take no lock and repair nothing."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Final, NamedTuple

import msgspec

from orch_protocol.core.errors import ForeignFileError
from orch_protocol.core.messages import Message, Reply, ToolResult, Usage
from orch_protocol.core.taint import TaintLabel
from orch_protocol.session.entries import (
    Entry,
    MessageEntry,
    SessionHeader,
    TranscriptPosition,
    TurnEndEntry,
    TurnStartEntry,
)

from .entry_codec import DECODE_ERRORS, SESSION_HEADER, UnknownEntry, decode_entry, decode_lines, decode_turn, read_back
from .log import log_reader
from .log.log_reader import find_position, load, newest_first, read_objects
from .log.verified_prefix import LineSpan
from .session import MessageRow, Quiet, SessionState

__all__ = [
    "NAME",
    "FileEntries",
    "LastTurn",
    "SessionFold",
    "foreign_transcript",
    "missing_lines",
    "read_header",
    "read_last_turn",
    "read_lines",
    "read_session",
    "read_taint_labels",
    "read_usage",
]

NAME: Final = "session.jsonl"
"""The name of the session file in an agent's folder."""

TAINT_ENTRY: Final = b'"type":"marks"'
"""The text that every line of a TaintEntry contains."""

_skimmer: msgspec.json.Decoder[MessageRow | Quiet] = msgspec.json.Decoder(MessageRow | Quiet)


def read_session(folder: Path) -> SessionState:
    """Return the session in `folder`. The result is empty if there is no session.

    Raise ForeignFileError if the file is not a transcript. Raise StoreError if the file cannot be read.
    """
    fold = SessionFold(folder / NAME)
    loaded = load(
        fold.path, header=SESSION_HEADER, on_object=fold.apply_line, on_block=fold.apply_lines, on_restart=fold.restart
    )
    return fold.folded(loaded.header)


def read_taint_labels(folder: Path) -> tuple[TaintLabel, ...]:
    """Return the taint labels of the conversation in `folder`. Raise the same errors as `read_session`.

    Most conversations have no labels. Their sessions are not decoded.
    """
    try:
        if TAINT_ENTRY not in (folder / NAME).read_bytes():
            return ()
    except OSError:
        pass  # the next function reports the error
    return read_session(folder).taint_labels


def read_lines(folder: Path) -> Iterator[bytes]:
    """Yield the encoded entries of the transcript in `folder`, the header first.

    Raise the same errors as `read_session`.
    """
    return read_objects(folder / NAME, header=SESSION_HEADER)


def read_header(path: Path) -> SessionHeader | None:
    """Return the header of the session file at `path` without reading the rest.

    Return None if the header is missing or damaged.

    Raise the same errors as `read_session`.
    """
    entry = decode_entry(log_reader.read_header(path, SESSION_HEADER))
    return entry if isinstance(entry, SessionHeader) else None


def foreign_transcript(path: Path, owner: str, agent: str) -> ForeignFileError:
    """Return the error for the transcript of agent `owner` at the path of the transcript of `agent`."""
    return ForeignFileError(
        f"{path} is the transcript of agent {owner!r}, not of {agent!r}; replace the file with a backup copy, or move "
        f"the file away: agent {agent!r} then continues without its earlier turns"
    )


def missing_lines(path: Path, acknowledged: TranscriptPosition) -> str:
    """Return the reason why the session file at `path` lacks the line `acknowledged`, or "" if it contains the line.

    The comparison detects a truncated, emptied or replaced file. Raise StoreError if the file cannot be read.
    """
    found = find_position(path, acknowledged.seq)
    if found == acknowledged:
        return ""
    if found is not None and found.seq == acknowledged.seq:
        return (
            f"line {found.seq} has the checksum {found.checksum:08x}, and the one that was acknowledged had "
            f"{acknowledged.checksum:08x}: the file was truncated and continued, or another was put in its place"
        )
    lines = f"ends at line {found.seq}" if found is not None else "is empty or missing"
    return f"acknowledged entries are missing: the file {lines}, line {acknowledged.seq} was acknowledged"


class LastTurn(NamedTuple):
    """The last turn in a transcript, and its reply if the turn is finished.

    `prompted` is True if the prompt of the turn is recorded. Entries that precede the prompt may exist without the
    prompt.
    """

    query_id: str
    reply: Reply | None
    prompted: bool = True


def read_last_turn(folder: Path) -> LastTurn | None:
    """Return the last turn recorded in the folder's transcript, or None.

    Read only the end of the file, without a lock. Raise StoreError if the file cannot be read.
    """
    last = ""
    for line in newest_first(folder / NAME):
        entry = decode_entry(line)
        if not isinstance(entry, (TurnEndEntry, MessageEntry, TurnStartEntry)):
            continue
        if last and entry.turn != last:
            break
        if isinstance(entry, TurnEndEntry):
            return LastTurn(entry.turn, entry.reply)
        if not entry.turn:
            return None
        if isinstance(entry, MessageEntry) and _follows_prompt(entry.message):
            return LastTurn(entry.turn, None)
        last = entry.turn
    return LastTurn(last, None, prompted=False) if last else None


def _follows_prompt(message: Message) -> bool:
    """Return whether `message` is the prompt of its turn, or comes after the prompt.

    Only results of an earlier turn may precede the prompt.
    """
    return message.role == "assistant" or not all(isinstance(block, ToolResult) for block in message.content)


def read_usage(folder: Path, turn: str) -> Usage:
    """Return the usage of `turn` that is recorded so far. `turn` is the last turn in the folder's transcript.

    Read only this turn, without a lock. Raise StoreError if the file cannot be read.
    """
    usage = Usage()
    for line in newest_first(folder / NAME):
        try:
            entry = decode_turn(line)
        except DECODE_ERRORS:
            continue
        if entry.turn not in ("", turn):
            break
        if entry.turn:  # Usage between turns does not count.
            usage += entry.usage or Usage()
    return usage


class FileEntries:
    """The entries of a file. Each iteration reads the file again, so that the entries are not kept in memory."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def __iter__(self) -> Iterator[Entry | UnknownEntry]:
        return filter(None, map(decode_entry, read_objects(self._path, header=SESSION_HEADER)))


class SessionFold:
    """Computes the state of the session file at `path` while the file is read."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._session = SessionState()

    def restart(self) -> None:
        """Start again with an empty state."""
        self._session = SessionState()

    def apply_line(self, line: bytes) -> None:
        """Apply one entry to the state."""
        if (entry := decode_entry(line)) is not None:
            self._session.apply(entry)

    def apply_lines(self, lines: bytes, _: LineSpan) -> None:
        """Apply undamaged lines to the state. The log's own keys in the lines are ignored."""
        self._session.extend(decode_lines(lines))

    def skim_lines(self, lines: bytes, where: LineSpan) -> None:
        """Apply undamaged lines to the state. The content of the messages at `where` is read only when needed."""
        try:
            if self._session.skim(_skimmer.decode_lines(lines), lambda: decode_lines(where.read(self.path))):
                return
        except DECODE_ERRORS:
            pass  # No line was applied, because an entry changes the view or has an unknown type.
        self.apply_lines(lines, where)

    def folded(self, header: bytes) -> SessionState:
        """Return the state after the file was read once."""
        session = self._session
        if session.must_refold:
            session = session.refolded(FileEntries(self.path))
        if header:
            session.apply(read_back(header))
        return session
