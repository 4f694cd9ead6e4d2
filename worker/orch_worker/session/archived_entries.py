"""Reads messages at known positions of a session file. Another process may be writing the file."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from hashlib import sha256
from pathlib import Path
from typing import BinaryIO

import msgspec

from orch_protocol.core.archives import Span
from orch_protocol.core.errors import DamagedError, StoreError
from orch_protocol.session.entries import AnyMessageEntry

from .entry_codec import ENTRY_PREFIXES, MESSAGE_PREFIXES
from .log.log_reader import scan_lines
from .log.record_format import END_BYTES, ChecksumChain, sealed_at, unseal_line

__all__ = [
    "ArchivedEntry",
    "SessionLine",
    "entries_in",
    "lines_in",
    "messages_in",
    "read_spans",
    "sha256_of",
]


_decoder: msgspec.json.Decoder[AnyMessageEntry] = msgspec.json.Decoder(AnyMessageEntry)


class SessionLine(msgspec.Struct, frozen=True, gc=False):
    """A line of a session file: its offset, its object, whether the object is a message, and whether the line is
    undamaged.

    `object` may still contain the log's own keys. The object of a damaged line may be anything.
    """

    offset: int
    object: bytes | memoryview
    is_message: bool
    undamaged: bool = True


class ArchivedEntry(msgspec.Struct, frozen=True, gc=False):
    """An entry of an archive: its number (from 1), the offset of its line, its message, and its fault.

    `fault` is "" if the entry is undamaged.
    """

    number: int
    offset: int
    entry: AnyMessageEntry | None
    fault: str = ""


def read_spans(path: Path, spans: Sequence[Span]) -> list[bytes]:
    """Return the bytes at each of `spans` in the file at `path`. Raise StoreError if the file cannot be read."""
    try:
        with open(path, "rb") as file:
            return [_read(file, *span) for span in spans]
    except OSError as error:
        raise StoreError(f"cannot read {path}: {error.strerror}") from error


def _read(file: BinaryIO, offset: int, length: int) -> bytes:
    file.seek(offset)
    return file.read(length)


def sha256_of(parts: Sequence[bytes]) -> str:
    """Return the SHA-256 of the concatenated `parts` in hex."""
    hash = sha256()
    for part in parts:
        hash.update(part)
    return hash.hexdigest()


def lines_in(path: Path, spans: Sequence[Span]) -> Iterator[SessionLine]:
    """Yield the lines at `spans` of the file at `path`, in order. Read only as much as necessary.

    Raise DamagedError if the type of a damaged line is unknown. Raise StoreError if the file cannot be read.
    """
    try:
        with open(path, "rb") as file:
            for offset, length in spans:
                yield from _lines(path, file, offset, offset + length)
    except OSError as error:
        raise StoreError(f"cannot read {path}: {error.strerror}") from error


def _lines(path: Path, file: BinaryIO, offset: int, end: int) -> Iterator[SessionLine]:
    before = max(0, offset - END_BYTES)
    chain = ChecksumChain.after(_read(file, before, offset - before))
    for line in scan_lines(_lines_of(file, end - offset), chain, offset=offset):
        data, undamaged = line.data, line.sealed is not None
        sealed = unseal_line(data[:-1]) if data.endswith(b"\n") else None
        if not undamaged and (not (sealed and data.startswith(ENTRY_PREFIXES)) or _hides_message(data)):
            raise DamagedError(f"{path} at byte {line.offset} is damaged: the archived messages cannot be read")
        yield SessionLine(line.offset, sealed.object if sealed else b"", data.startswith(MESSAGE_PREFIXES), undamaged)


def _lines_of(file: BinaryIO, length: int) -> Iterator[bytes]:
    """Yield the lines in the next `length` bytes. If the file ends early, the last line is b""."""
    line = b"\n"
    while length > 0 and line:
        line = file.readline(length)
        length -= len(line)
        yield line


def _hides_message(line: bytes) -> bool:
    """Return whether `line` contains a second entry that is a message. The newline between the two entries was lost."""
    return not line.startswith(MESSAGE_PREFIXES) and any(head in line for head in MESSAGE_PREFIXES)


def entries_in(
    path: Path, spans: Sequence[Span], expected: str = "", first: int = 1, last: int | None = None
) -> Iterator[ArchivedEntry]:
    """Yield the entries `first` to `last` (from 1) among the messages at `spans` of the file at `path`.

    Entries on damaged lines have a fault and no message. Raise DamagedError if the lines are undamaged but do not match
    the hash `expected`, or if the lines cannot be counted. Raise StoreError if the file cannot be read.
    """
    lines = _checked(path, spans, expected) if expected else lines_in(path, spans)
    number = 0
    for line in lines:
        number += line.is_message
        if last is not None and number > last:
            return
        if line.is_message and number >= first:
            yield _archived_entry(path, number, line)


def _checked(path: Path, spans: Sequence[Span], expected: str) -> Iterable[SessionLine]:
    parts = read_spans(path, spans)
    if sha256_of(parts) == expected:
        return _split_lines(parts, spans)
    found = list(lines_in(path, spans))
    if all(line.undamaged for line in found):
        raise DamagedError(
            f"{path} at byte {spans[0][0] if spans else 0} differs from the archived messages (file replaced?)"
        )
    return found


def _split_lines(parts: Sequence[bytes], spans: Sequence[Span]) -> Iterator[SessionLine]:
    """Yield the undamaged lines in `parts`."""
    for (offset, _), part in zip(spans, parts, strict=True):
        view, start = memoryview(part), 0
        while start < len(part):
            stop = part.find(b"\n", start)
            stop = len(part) if stop < 0 else stop
            if sealed_at(part, start, stop) >= 0:
                # Keep the log's own keys, because removing them would copy the line.
                yield SessionLine(offset + start, view[start:stop], part.startswith(MESSAGE_PREFIXES, start))
            start = stop + 1


def messages_in(
    path: Path, spans: Sequence[Span], expected: str = "", first: int = 1, last: int | None = None
) -> list[tuple[int, AnyMessageEntry]]:
    """Return the entries of `entries_in`, each with the offset of its line.

    Raise DamagedError for a damaged entry. Raise StoreError if the file cannot be read.
    """
    found = []
    for archived in entries_in(path, spans, expected, first, last):
        if archived.entry is None:
            raise DamagedError(archived.fault)
        found.append((archived.offset, archived.entry))
    return found


def _archived_entry(path: Path, number: int, line: SessionLine) -> ArchivedEntry:
    fault = "it does not fit its checksum"
    if line.undamaged:
        try:
            return ArchivedEntry(number, line.offset, _decoder.decode(line.object))
        except (msgspec.MsgspecError, UnicodeError, RecursionError) as error:
            fault = str(error)
    return ArchivedEntry(
        number, line.offset, None, f"entry {number}, in {path} at byte {line.offset}, is damaged: {fault}"
    )
