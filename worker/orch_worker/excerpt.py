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

__all__ = ["Line", "decoded", "digest", "lines_of", "messages_in", "read_spans"]

_decoder = msgspec.json.Decoder(MessageEntry)

MESSAGE: Final = b'{"type":"message"'


class Line(msgspec.Struct, frozen=True, gc=False):
    """A line of a session file: where it begins, the object on it, and whether that fits its checksum."""

    offset: int
    object: bytes
    sound: bool = True

    @property
    def is_message(self) -> bool:
        """Whether a message is on it."""
        return self.object.startswith(MESSAGE)


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


def messages_in(path: Path, spans: Sequence[Span], expected: str = "") -> list[tuple[int, MessageEntry]]:
    """Return the message entries on the lines `spans` of the file at `path`, each with the offset of its line.

    Raises DamagedError unless they hash to `expected`, if that is given, and each line fits its checksum; StoreError
    when the file cannot be read.
    """
    parts = read_spans(path, spans)
    if expected and digest(parts) != expected:
        raise DamagedError(f"{path} at byte {spans[0][0] if spans else 0} is not what was archived")
    return [
        (line.offset, decoded(path, line))
        for (offset, _), part in zip(spans, parts, strict=True)
        for line in lines_of(part, offset)
        if line.is_message
    ]


def decoded(path: Path, line: Line) -> MessageEntry:
    """Return the message on `line` of the file at `path`. Raises DamagedError."""
    if not line.sound:
        raise DamagedError(f"{path} at byte {line.offset}: what was archived does not fit its checksum")
    try:
        return _decoder.decode(line.object)
    except (msgspec.MsgspecError, UnicodeError, RecursionError) as error:
        raise DamagedError(f"{path} at byte {line.offset}: what was archived cannot be read: {error}") from error


def lines_of(data: bytes, offset: int) -> Iterator[Line]:
    """Yield the lines in `data`, which stands at `offset` of its file, as far as they are ours.

    What a line's checksum is chained to stands on the line before it: the first is taken as it is.
    """
    seed: int | None = None
    for line in data.split(b"\n"):
        sealed = unseal(line)
        if sealed is not None:
            yield Line(offset, sealed.object, seed is None or sealed.fits(seed))
        seed = sealed.checksum if sealed is not None else None
        offset += len(line) + 1
