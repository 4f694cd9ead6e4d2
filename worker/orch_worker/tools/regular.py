"""Opening files that are files: nothing here can block on a pipe or wake a device."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

from .descent import open_below

__all__ = ["NotRegularError", "open_regular"]


class NotRegularError(OSError):
    """The path leads to something else than a regular file."""


@contextmanager
def open_regular(path: Path, root: Path | None = None) -> Iterator[BinaryIO]:
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
