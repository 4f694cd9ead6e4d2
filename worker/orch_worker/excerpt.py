"""Messages read where they stand: on known lines of a session file, which may belong to a process that writes it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from hashlib import sha256
from pathlib import Path
from typing import BinaryIO, Final

import msgspec

from orch_protocol.archive import Span
from orch_protocol.entries import MessageEntry
from orch_protocol.errors import DamagedError, StoreError

from .lines import unseal

__all__ = ["Line", "digest", "lines_of", "messages_in", "read_spans"]

_decoder = msgspec.json.Decoder(MessageEntry)

MESSAGE: Final = b'{"type":"message"'


class Line(msgspec.Struct, frozen=True, gc=False):
    """A line of a session file: where it begins, and the object on it."""

    offset: int
    object: bytes


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


def digest(parts: Sequence[bytes]) -> str:
    """Return the SHA-256 of `parts` together, in hex."""
    whole = sha256()
    for part in parts:
        whole.update(part)
    return whole.hexdigest()


def messages_in(path: Path, spans: Sequence[Span], expected: str) -> list[tuple[int, MessageEntry]]:
    """Return the message entries on the lines `spans` of the file at `path`, each with the offset of its line.

    Raises DamagedError unless they hash to `expected`, StoreError when the file cannot be read.
    """
    parts = read_spans(path, spans)
    if digest(parts) != expected:
        raise DamagedError(f"{path} at byte {spans[0][0] if spans else 0} is not what was archived")
    try:
        return [
            (line.offset, _decoder.decode(line.object))
            for (offset, _), part in zip(spans, parts, strict=True)
            for line in lines_of(part, offset)
            if line.object.startswith(MESSAGE)
        ]
    except (msgspec.MsgspecError, UnicodeError, RecursionError) as error:
        raise DamagedError(f"{path}: what was archived cannot be read: {error}") from error


def lines_of(data: bytes, offset: int) -> Iterator[Line]:
    """Yield the lines in `data`, which stands at `offset` of its file, as far as they are ours."""
    for line in data.split(b"\n"):
        sealed = unseal(line)
        if sealed is not None:
            yield Line(offset, sealed.object)
        offset += len(line) + 1
