"""Opens, reads and syncs files safely, and describes errors."""

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
    "open_regular_file",
    "sync_folder",
]


MAX_SMALL: Final = 1 << 20
"""Maximum size of a configuration file."""

_CAUSES: Final = {
    errno.ENOSPC: "disk full: free some space",
    errno.EDQUOT: "disk quota used up: free some space",
    errno.EFBIG: "the file is as large as a file may be here",
    errno.EROFS: "the file system is read-only: use a folder that can be written",
    errno.EACCES: "permission denied: is it read-only?",
    errno.EPERM: "not permitted: is it read-only?",
    errno.EIO: "the disk reports an input/output error",
}


def error_text(error: OSError) -> str:
    """Return a description of `error` for users."""
    return _CAUSES.get(error.errno or 0) or error.strerror or str(error)


def io_error(what: str, path: Path, error: OSError) -> StoreError:
    """Return a StoreError. Its message says that the action `what` failed for `path` because of `error`."""
    return StoreError(f"cannot {what} {path}: {error_text(error)}")


def open_regular(path: Path, flags: int) -> int:
    """Return a descriptor of the regular file at `path`. If the file is created, its mode is 0600.

    Raise FileNotFoundError for a missing file, ForeignFileError for a device, FIFO or socket, and StoreError for other
    failures.
    """
    try:
        # Without O_NONBLOCK, opening a FIFO would block.
        descriptor = os.open(path, flags | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY, 0o600)
    except FileNotFoundError:
        raise
    except OSError as error:
        raise io_error("open", path, error) from error
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        writable = flags & os.O_ACCMODE != os.O_RDONLY
        raise ForeignFileError(f"{path} is not a regular file{' and was not changed' if writable else ''}")
    return descriptor


def bytes_of(path: Path, limit: int = MAX_SMALL) -> bytes:
    """Return the content of the file at `path`. This function does not block on a pipe and does not read a device.

    Raise OSError if the file cannot be read, is not a regular file, or has more than `limit` bytes.
    """
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY)
    try:
        mode = os.fstat(descriptor).st_mode
        if stat.S_ISDIR(mode):
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR))
        if not stat.S_ISREG(mode):
            raise OSError(errno.EINVAL, "it is not a regular file")
        data = b""
        while len(data) <= limit and (more := os.read(descriptor, limit + 1 - len(data))):
            data += more
    finally:
        os.close(descriptor)
    if len(data) > limit:
        raise OSError(errno.EFBIG, f"it has more than {limit:,} bytes")
    return data


def lines_backwards(path: Path) -> Iterator[bytes]:
    """Yield the complete lines of the file, the last line first. At the start of the file, yield b"".

    A missing file yields nothing. Raise StoreError if the file cannot be read.
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
                    lines.pop()  # This is the incomplete line after the last newline.
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
    """Write `torn` durably to the first free name `<name>.torn-<n>` beside `path`. Return the path of the new file."""
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
    """Wait until the names in `folder` are on the disk. Skip a folder without read permission."""
    try:
        descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except PermissionError:
        return
    try:
        os.fsync(descriptor)
    except OSError as error:
        if error.errno != errno.EINVAL:  # The file system does not support syncing folders.
            raise
    finally:
        os.close(descriptor)


# --- Opening regular files only ---


class NotRegularError(OSError):
    """The path is not a regular file."""


@contextmanager
def open_regular_file(path: Path, root: Path | None = None) -> Iterator[BinaryIO]:
    """Open the regular file `path` for reading bytes.

    Raise OSError if opening fails, and NotRegularError for links, pipes and other types. If `root` is given, the file
    must lie below this folder, even if folders are swapped during the call. Both paths must contain no links.
    """
    # Check twice: opening a device can have side effects, and the file may be replaced before it is opened.
    if not stat.S_ISREG(os.stat(path, follow_symlinks=False).st_mode):
        raise NotRegularError
    flags = os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC
    descriptor = os.open(path, flags) if root is None else open_below(str(root), str(path.relative_to(root)), flags)
    with open(descriptor, "rb") as file:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise NotRegularError
        yield file
