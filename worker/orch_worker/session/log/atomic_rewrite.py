"""A durable file written anew: beside the old one, then put in its place, whole or not at all.

For the one thing that appending cannot do: deleting. Whoever is killed on the way leaves the old file as it was.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from ...system.files import io_error, sync_folder
from .record_format import UncheckedLine, seal_lines, unseal_line

__all__ = ["LogRewrite", "discard_unfinished", "rewriting"]

SUFFIX: Final = ".new"
BUFFER: Final = 1 << 20


class LogRewrite:
    """The new file, in which lines follow each other in a chain of their own. Made by `rewriting`."""

    def __init__(self, path: Path, descriptor: int) -> None:
        self.path = path
        """Where it is written."""
        self.end = 0
        """Offset behind the last line, in bytes."""
        self._descriptor = descriptor
        self._waiting: list[bytes] = []
        self._written = 0
        self._seq = 0
        self._checksum = 0

    def append(self, object: bytes, like: UncheckedLine) -> None:
        """Write an encoded JSON object on the line that was `like`. Raises OSError."""
        # Numbers stay, also where some are missing: by them a damaged line is told from one that follows lost ones.
        self._put(self._sealed(object, like.seq, more=like.more))

    def keep(self, line: bytes) -> None:
        """Write a damaged line, or one that is none of ours, as it is. Raises OSError."""
        self._put(line)
        # What follows was chained to what the line states, and is looked for there by who begins to read behind it.
        if (sealed := _unsealed(line)) is not None:
            self._seq, self._checksum = sealed.seq, sealed.checksum

    def spoil(self, line: bytes, text: bytes) -> None:
        """Write `text`, which is no JSON, on a line as damaged as `line` is, in place of that. Raises OSError."""
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
        """Return what stands at each of `spans` (offset, length), which was written already. Raises OSError."""
        if any(offset + length > self._written for offset, length in spans):
            self.flush()
        return [os.pread(self._descriptor, length, offset) for offset, length in spans]

    def flush(self) -> None:
        """Hand everything to the kernel. Raises OSError."""
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
    """Yield what becomes the file at `path` when the block is over, durably; after an error the old one stays.

    For the owner of the folder. Raises StoreError when the new file cannot be written or put in place.
    """
    beside = path.with_name(f"{path.name}{SUFFIX}")
    try:
        discard_unfinished(path)
        descriptor = os.open(beside, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    except OSError as error:
        raise io_error("write", beside, error) from error
    try:
        new = LogRewrite(beside, descriptor)
        yield new
        new.flush()
        os.fsync(descriptor)
        os.replace(beside, path)
        sync_folder(path.parent)
    except BaseException as error:
        discard_unfinished(path)
        if isinstance(error, OSError):
            raise io_error("rewrite", path, error) from error
        raise
    finally:
        os.close(descriptor)


def discard_unfinished(path: Path) -> None:
    """Remove what somebody who was killed left of rewriting the file at `path`."""
    try:
        os.unlink(f"{path}{SUFFIX}")
    except OSError:
        pass  # there is none; or it cannot be removed, which whoever writes there is told
