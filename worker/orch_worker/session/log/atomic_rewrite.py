"""Rewrites a log file atomically: a new file is written and then renamed over the old file.

Rewriting is needed only for deletion and for replacing entries by their sum. If the process is killed, the old file
stays unchanged.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from ...system.atomic_write import SUFFIX, atomic_write
from ...system.files import io_error
from .record_format import UncheckedLine, seal_lines, unseal_line

__all__ = ["LogRewrite", "discard_unfinished", "replace_log", "rewriting"]

BUFFER: Final = 1 << 20


class LogRewrite:
    """The new file, which has its own checksum chain. `rewriting` creates this object."""

    def __init__(self, path: Path, descriptor: int) -> None:
        self.path = path
        """Path of the new file."""
        self.end = 0
        """The offset after the last line, in bytes."""
        self._descriptor = descriptor
        self._waiting: list[bytes] = []
        self._written = 0
        self._seq = 0
        self._checksum = 0

    def append(self, object: bytes, like: UncheckedLine) -> None:
        """Write an encoded JSON object in place of the line `like`. Raise OSError if writing fails."""
        # Keep line numbers and gaps, which distinguish a damaged line from a line after lost lines.
        self._put(self._sealed(object, like.seq, more=like.more))

    def keep(self, line: bytes) -> None:
        """Write a damaged or foreign line unchanged. Raise OSError if writing fails."""
        self._put(line)
        # The checksum of the next line continues from the checksum that this line states.
        if (sealed := _unsealed(line)) is not None:
            self._seq, self._checksum = sealed.seq, sealed.checksum

    def replace_damaged(self, line: bytes, text: bytes) -> None:
        """Replace the damaged line `line` by `text`. The new line is also damaged, because `text` is not JSON.

        Raise OSError if writing fails.
        """
        like = _unsealed(line)
        sealed = self._sealed(text, like.seq if like is not None else self._seq + 1)
        right, self._checksum = self._checksum, self._checksum ^ 1
        self._put(sealed.replace(b'"c":"%08x"' % right, b'"c":"%08x"' % self._checksum))

    def _sealed(self, object: bytes, seq: int, *, more: bool = False) -> bytes:
        line, self._seq, self._checksum = seal_lines([object], seq - 1, self._checksum, more=more)
        return line

    def _put(self, line: bytes) -> None:
        self._waiting.append(line)
        self.end += len(line)
        if self.end - self._written >= BUFFER:
            self.flush()

    def read(self, spans: Sequence[tuple[int, int]]) -> list[bytes]:
        """Return the bytes at `spans` (offset, length) of the new file. Raise OSError if reading fails."""
        if any(offset + length > self._written for offset, length in spans):
            self.flush()
        return [os.pread(self._descriptor, length, offset) for offset, length in spans]

    def flush(self) -> None:
        """Write all buffered lines. Raise OSError if writing fails."""
        data = memoryview(b"".join(self._waiting))
        self._waiting.clear()
        while data:
            written = os.write(self._descriptor, data)
            self._written += written
            data = data[written:]


def _unsealed(line: bytes) -> UncheckedLine | None:
    return unseal_line(line[:-1]) if line.endswith(b"\n") else None


@contextmanager
def rewriting(path: Path) -> Iterator[LogRewrite]:
    """Yield a new file. After the block, the new file durably replaces the file at `path`.

    After an error, the old file stays.

    The caller must hold the folder's lock. Raise StoreError if the new file cannot be written or renamed.
    """
    try:
        with atomic_write(path, locked=True) as file:
            new = LogRewrite(path.with_name(f"{path.name}{SUFFIX}"), file.fileno())
            yield new
            new.flush()
    except OSError as error:
        raise io_error("rewrite", path, error) from error


def replace_log(path: Path, objects: Iterable[bytes]) -> None:
    """Replace the file at `path` by one that contains the encoded JSON `objects`, the header first.

    After an error, the old file stays. The caller must hold the folder's lock, and open the file again. Raise
    StoreError if the new file cannot be written or renamed.
    """
    data, _, _ = seal_lines(list(objects), 0, 0)
    try:
        with atomic_write(path, locked=True) as file:
            file.write(data)
    except OSError as error:
        raise io_error("rewrite", path, error) from error


def discard_unfinished(path: Path) -> None:
    """Remove the remains of an unfinished rewrite of the file at `path`."""
    try:
        os.unlink(f"{path}{SUFFIX}")
    except OSError:
        pass  # The file does not exist, or cannot be removed. In the second case, a later write reports the error.
