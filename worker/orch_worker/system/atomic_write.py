"""Atomic replacement of a file. Readers see the old content or the new content, never a part, even after a crash."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO, Final, Literal

from .files import sync_folder

__all__ = ["SUFFIX", "Sync", "atomic_write"]

SUFFIX: Final = ".new"
"""Suffix of the name of the temporary file of a `locked` write."""

Sync = Literal["all", "content", "none"]
"""The state after a power failure. "all": the new file; "content": the old or the new file; "none": any state."""


@contextmanager
def atomic_write(
    path: Path, *, mode: int | None = 0o600, sync: Sync = "all", locked: bool = False, folder: int | None = None
) -> Iterator[BinaryIO]:
    """Yield a new file that replaces `path` when the block ends. After an error, `path` keeps its content.

    The new file has the permissions `mode`. If `mode` is None, the umask determines the permissions. A caller that
    holds a lock on `path` sets `locked`. The temporary file then has a fixed name, and the next write removes a
    temporary file that a killed process left. If `folder`, an open descriptor, is given, the name of `path` is looked
    up in this folder. Raise OSError with the name `path` if writing fails.
    """
    temporary = path.with_name(f"{path.name}{SUFFIX}" if locked else f".{os.urandom(8).hex()}.tmp")
    # In an open folder, only the last part of the name is used, even if `path` now leads to another folder.
    new, old = (temporary, path) if folder is None else (Path(temporary.name), Path(path.name))
    replaced = False
    try:
        if locked:
            with suppress(FileNotFoundError):
                os.unlink(new, dir_fd=folder)
        flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW
        descriptor = os.open(new, flags, 0o666 if mode is None else mode, dir_fd=folder)
        try:
            with open(descriptor, "w+b") as file:
                if mode is not None:
                    os.fchmod(descriptor, mode)
                yield file
                file.flush()
                if sync != "none":
                    os.fsync(descriptor)
            os.replace(new, old, src_dir_fd=folder, dst_dir_fd=folder)
            replaced = True
        finally:
            if not replaced:
                with suppress(OSError):
                    os.unlink(new, dir_fd=folder)
        if sync == "all":
            sync_folder(path.parent) if folder is None else os.fsync(folder)
    except OSError as error:
        if error.filename == str(new):
            error.filename = str(path)
        raise
