"""Opening, reading and syncing files carefully, and saying what went wrong."""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO, Final

from orch_protocol.core.errors import ForeignFileError, StoreError

from .safe_descent import open_below

__all__ = [
    "NotRegularError",
    "bytes_of",
    "error_text",
    "io_error",
    "keep_aside",
    "lines_backwards",
    "open_regular",
    "regular_open_regular",
    "sync_folder",
]


MOST_SMALL: Final = 1 << 20
"""No configuration is longer."""

_CAUSES: Final = {
    errno.ENOSPC: "disk full: free some space",
    errno.EDQUOT: "disk quota used up: free some space",
    errno.EFBIG: "the file is as large as a file may be here",
    errno.EROFS: "the file system is read-only",
    errno.EACCES: "permission denied: is it read-only?",
    errno.EPERM: "not permitted: is it read-only?",
    errno.EIO: "the disk reports an input/output error",
}


def error_text(error: OSError) -> str:
    """Return what `error` means, in words."""
    return _CAUSES.get(error.errno or 0) or error.strerror or str(error)


def io_error(what: str, path: Path, error: OSError) -> StoreError:
    """Return the error to raise when `error` kept us from doing `what` to `path`."""
    return StoreError(f"cannot {what} {path}: {error_text(error)}")


def open_regular(path: Path, flags: int) -> int:
    """Return a descriptor of the regular file at `path` (mode 0600 if it is created).

    Raises FileNotFoundError, ForeignFileError when it is a device, FIFO or socket, StoreError for all else.
    """
    try:
        # Without O_NONBLOCK a FIFO of that name would hang the opening.
        descriptor = os.open(path, flags | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY, 0o600)
    except FileNotFoundError:
        raise
    except OSError as error:
        raise io_error("open", path, error) from error
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise ForeignFileError(f"{path} is not a regular file: it was left alone")
    return descriptor


def bytes_of(path: Path, most: int = MOST_SMALL) -> bytes:
    """Return what is in the file at `path`, whoever put it there: no pipe is waited for, no device read without end.

    Raises OSError, also for what is no regular file, and for one of more than `most` bytes.
    """
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY)
    try:
        mode = os.fstat(descriptor).st_mode
        if stat.S_ISDIR(mode):
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR))
        if not stat.S_ISREG(mode):
            raise OSError(errno.EINVAL, "it is not a regular file")
        data = b""
        while len(data) <= most and (more := os.read(descriptor, most + 1 - len(data))):
            data += more
    finally:
        os.close(descriptor)
    if len(data) > most:
        raise OSError(errno.EFBIG, f"it has more than {most:,} bytes")
    return data


def lines_backwards(path: Path) -> Iterator[bytes]:
    """Yield the complete lines of the file from last to first, then b"" for what stands before the first.

    A missing file has none. Raises StoreError when it cannot be read.
    """
    try:
        with open(open_regular(path, os.O_RDONLY), "rb") as file:
            position, size, rest, seen_end = file.seek(0, os.SEEK_END), 1 << 16, b"", False
            while position:
                size = min(size * 2, position)
                position -= size
                file.seek(position)
                rest, *lines = (file.read(size) + rest).split(b"\n")
                if lines and not seen_end:
                    lines.pop()  # what follows the last newline
                    seen_end = True
                yield from reversed(lines)
            if seen_end:
                yield rest
                yield b""
    except FileNotFoundError:
        return
    except OSError as error:
        raise io_error("read", path, error) from error


def keep_aside(path: Path, torn: bytes) -> Path:
    """Write `torn` durably to the first free `<name>.torn-<n>` beside `path` and return where."""
    number = 1
    while True:
        aside = path.with_name(f"{path.name}.torn-{number}")
        try:
            descriptor = os.open(aside, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
            break
        except FileExistsError:
            number += 1
    try:
        with open(descriptor, "wb") as file:
            file.write(torn)
            file.flush()
            os.fsync(file.fileno())
        sync_folder(path.parent)
    except OSError:
        aside.unlink(missing_ok=True)
        raise
    return aside


def sync_folder(folder: Path) -> None:
    """Wait until the names in `folder` are on the disk. A folder we may not read is not one we made: left out."""
    try:
        descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except PermissionError:
        return
    try:
        os.fsync(descriptor)
    except OSError as error:
        if error.errno != errno.EINVAL:  # a file system without such a thing
            raise
    finally:
        os.close(descriptor)


# --- Opening files that are files ---


class NotRegularError(OSError):
    """The path leads to something else than a regular file."""


@contextmanager
def regular_open_regular(path: Path, root: Path | None = None) -> Iterator[BinaryIO]:
    """Open the regular file `path` for reading bytes. Raises OSError; NotRegularError for links, pipes and so on.

    With `root` nothing is opened that does not lie below that folder, whatever is swapped meanwhile; both are real.
    """
    # Asked twice: opening a device can have effects, and what was a file may be a pipe by the time it is opened.
    if not stat.S_ISREG(os.stat(path, follow_symlinks=False).st_mode):
        raise NotRegularError
    flags = os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC
    descriptor = os.open(path, flags) if root is None else open_below(str(root), str(path.relative_to(root)), flags)
    with open(descriptor, "rb") as file:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise NotRegularError
        yield file
