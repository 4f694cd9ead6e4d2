"""A note beside a session file: the length and CRC-32 of a prefix whose lines were all checked.

Opening the file reads the prefix again and compares the CRC-32; its lines are then not checked one by one. When the
CRC-32 differs, or the note is missing, every line is checked.

Measured: opening a session of 100,000 entries takes 56 ms of CPU; checking every line takes 108 ms, 1.9 times as much
(`benchmarks/bench_sessions.py` prints the ratio).
"""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path
from typing import Final
from zlib import crc32

import msgspec
from msgspec import Struct

from orch_protocol.core.errors import StoreError

from ...system.files import bytes_of, io_error, open_regular

__all__ = [
    "MIN_PREFIX_BYTES",
    "LineSpan",
    "PrefixMismatchError",
    "VerifiedPrefix",
    "read_verified_prefix",
    "write_verified_prefix",
]

MIN_PREFIX_BYTES: Final = 1 << 20
"""Bytes: of a shorter file, or for fewer bytes more, nothing is noted."""


class PrefixMismatchError(Exception):
    """The file is not what is known of it."""


class VerifiedPrefix(Struct, frozen=True):
    """The first `end` bytes of a file are whole, sound lines and have the CRC-32 `sum`.

    The last of the lines has the number `seq` and states `checksum`.
    """

    end: int
    seq: int
    checksum: int
    sum: int


class LineSpan(Struct, frozen=True, gc=False):
    """Sound lines from `start` to `stop` of a file, all of which up to there has the CRC-32 `before`, and `after`."""

    start: int
    stop: int
    before: int
    after: int

    def read(self, path: Path) -> bytes:
        """Return these lines of the file at `path`. Raises StoreError when they are not there as they were."""
        try:
            with open(open_regular(path, os.O_RDONLY), "rb", buffering=0) as file:
                lines = os.pread(file.fileno(), self.stop - self.start, self.start)
        except OSError as error:
            raise io_error("read", path, error) from error
        if crc32(lines, self.before) != self.after:
            raise StoreError(f"{path} was changed by another process while it was open: run `orch fsck`")
        return lines


_decoder = msgspec.json.Decoder(VerifiedPrefix)


def read_verified_prefix(path: Path) -> VerifiedPrefix | None:
    """Return what is known of the file at `path`, None: nothing."""
    try:
        return _decoder.decode(bytes_of(_note_path(path)))
    except (OSError, msgspec.MsgspecError, UnicodeError, RecursionError):
        return None


def write_verified_prefix(path: Path, known: VerifiedPrefix) -> None:
    """Note what is known of the file at `path`; where that cannot be, its lines are looked at again next time."""
    beside = _note_path(path)
    fresh = beside.with_name(f"{beside.name}.new")
    try:
        # Whatever is there in its place is neither followed nor waited for: what is appended does not wait for a note.
        flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
        descriptor = os.open(fresh, flags, 0o600)
        with open(descriptor, "wb") as file:
            file.write(msgspec.json.encode(known))
        fresh.replace(beside)
    except OSError:
        with suppress(OSError):
            fresh.unlink()


def _note_path(path: Path) -> Path:
    return path.with_name(f"{path.name}.known")
