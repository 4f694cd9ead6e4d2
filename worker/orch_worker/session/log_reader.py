"""Messages read where they stand: on known lines of a session file, which may belong to a process that writes it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from hashlib import sha256
from pathlib import Path
from typing import BinaryIO, Final, get_args

import msgspec

from orch_protocol.core.archives import Span
from orch_protocol.core.errors import DamagedError, StoreError
from orch_protocol.session.entries import Entry, Telling

from .log.record_format import END_BYTES, ChecksumChain, sealed_at, unseal_line

__all__ = [
    "MESSAGES",
    "ArchivedEntry",
    "SessionLine",
    "entries_in",
    "lines_in",
    "messages_in",
    "read_spans",
    "sha256_of",
]


def _heads(kinds: object) -> tuple[bytes, ...]:
    return tuple(b'{"type":"%b"' % kind.__struct_config__.tag.encode() for kind in get_args(kinds))


MESSAGES: Final = _heads(Telling)
"""How the line of a message begins."""
KNOWN: Final = _heads(Entry)

_decoder: msgspec.json.Decoder[Telling] = msgspec.json.Decoder(Telling)


class SessionLine(msgspec.Struct, frozen=True, gc=False):
    """A line of a session file: where it begins, the object on it, whether that is a message, and whether it is whole.

    What seals the line may be left on `object`. Of one that is damaged it may be anything, and nothing at all.
    """

    offset: int
    object: bytes | memoryview
    is_message: bool
    sound: bool = True


class ArchivedEntry(msgspec.Struct, frozen=True, gc=False):
    """An entry of an archive: its number (from 1), where its line begins, its message, and what is wrong, mostly ""."""

    number: int
    offset: int
    entry: Telling | None
    fault: str = ""


def read_spans(path: Path, spans: Sequence[Span]) -> list[bytes]:
    """Return the bytes of each of `spans` in the file at `path`. Raises StoreError when it cannot be read."""
    try:
        with open(path, "rb") as file:
            return [_read(file, *span) for span in spans]
    except OSError as error:
        raise StoreError(f"cannot read {path}: {error.strerror}") from error


def _read(file: BinaryIO, offset: int, length: int) -> bytes:
    file.seek(offset)
    return file.read(length)


def sha256_of(parts: Sequence[bytes]) -> str:
    """Return the SHA-256 of `parts` together, in hex."""
    whole = sha256()
    for part in parts:
        whole.update(part)
    return whole.hexdigest()


def lines_in(path: Path, spans: Sequence[Span]) -> Iterator[SessionLine]:
    """Yield the lines on `spans` of the file at `path`, in order, reading no more of it than is asked for.

    Raises DamagedError for a line of which it cannot be said what it was, StoreError when the file cannot be read.
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
    while offset < end:
        line = file.readline(end - offset)
        sealed = unseal_line(line[:-1]) if line.endswith(b"\n") else None
        sound, _ = chain.take(line[:-1], sealed)
        if not sound and (not (sealed and line.startswith(KNOWN)) or _hides_message(line)):
            raise DamagedError(f"{path} at byte {offset} is damaged: the archived messages cannot be read")
        yield SessionLine(offset, sealed.object if sealed else b"", line.startswith(MESSAGES), sound)
        offset += len(line)


def _hides_message(line: bytes) -> bool:
    """Return whether `line` is another entry's with a message behind it: the newline between them was lost."""
    return not line.startswith(MESSAGES) and any(head in line for head in MESSAGES)


def entries_in(
    path: Path, spans: Sequence[Span], expected: str = "", first: int = 1, last: int | None = None
) -> Iterator[ArchivedEntry]:
    """Yield the entries `first` to `last` (from 1) among the messages on the lines `spans` of the file at `path`.

    Those on damaged lines have a fault and no message. Raises DamagedError when the lines are sound and yet do not hash
    to `expected`, if that is given, or cannot even be counted; StoreError when the file cannot be read.
    """
    lines = _checked(path, spans, expected) if expected else lines_in(path, spans)
    number = 0
    for line in lines:
        number += line.is_message
        if last is not None and number > last:
            return
        if line.is_message and number >= first:
            yield _held(path, number, line)


def _checked(path: Path, spans: Sequence[Span], expected: str) -> Iterable[SessionLine]:
    parts = read_spans(path, spans)
    if sha256_of(parts) == expected:
        return _apart(parts, spans)
    found = list(lines_in(path, spans))
    if all(line.sound for line in found):
        raise DamagedError(
            f"{path} at byte {spans[0][0] if spans else 0} differs from the archived messages: was the file replaced?"
        )
    return found


def _apart(parts: Sequence[bytes], spans: Sequence[Span]) -> Iterator[SessionLine]:
    """Yield the lines in `parts`, of which nothing is damaged."""
    for (offset, _), part in zip(spans, parts, strict=True):
        whole, start = memoryview(part), 0
        while start < len(part):
            stop = part.find(b"\n", start)
            stop = len(part) if stop < 0 else stop
            if sealed_at(part, start, stop) >= 0:
                # With what seals it, which is no part of an entry: to cut that off would be to copy the rest.
                yield SessionLine(offset + start, whole[start:stop], part.startswith(MESSAGES, start))
            start = stop + 1


def messages_in(
    path: Path, spans: Sequence[Span], expected: str = "", first: int = 1, last: int | None = None
) -> list[tuple[int, Telling]]:
    """Return the entries as `entries_in` yields them, each with the offset of its line. Raises DamagedError for any
    that is damaged, StoreError when the file cannot be read."""
    found = []
    for held in entries_in(path, spans, expected, first, last):
        if held.entry is None:
            raise DamagedError(held.fault)
        found.append((held.offset, held.entry))
    return found


def _held(path: Path, number: int, line: SessionLine) -> ArchivedEntry:
    fault = "it does not fit its checksum"
    if line.sound:
        try:
            return ArchivedEntry(number, line.offset, _decoder.decode(line.object))
        except (msgspec.MsgspecError, UnicodeError, RecursionError) as error:
            fault = str(error)
    return ArchivedEntry(
        number, line.offset, None, f"entry {number}, in {path} at byte {line.offset}, is damaged: {fault}"
    )
