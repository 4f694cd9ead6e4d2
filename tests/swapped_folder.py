"""A folder that the test replaces by a link and back as fast as possible, to find code that follows the link."""

from __future__ import annotations

import ctypes
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

__all__ = ["swapped"]

AT_FDCWD, RENAME_EXCHANGE = -100, 2


@contextmanager
def swapped(cwd: Path, outside: Path) -> Iterator[None]:
    """Create both folders. During the `with` block, `cwd/sub` changes between a folder and a link to `outside`."""
    outside.mkdir()
    (cwd / "sub").mkdir(parents=True)
    (cwd / "link").symlink_to(outside)
    names = [os.fsencode(cwd / name) for name in ("sub", "link")]
    libc, stop = ctypes.CDLL(None), threading.Event()

    def swap() -> None:
        while not stop.is_set():
            libc.renameat2(AT_FDCWD, names[0], AT_FDCWD, names[1], RENAME_EXCHANGE)

    swapper = threading.Thread(target=swap)
    swapper.start()
    try:
        yield
    finally:
        stop.set()
        swapper.join()
