"""The files that processes write to when they have nobody to tell: kept short, and quoted in errors."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

__all__ = ["LIMIT", "open_log", "read_tail", "trim"]

LIMIT: Final = 1 << 20
KEPT: Final = 1 << 18
NOTICE: Final = b"[earlier output dropped]\n"


def open_log(path: Path | str) -> int:
    """Return a new descriptor that appends to `path`, readable by its owner alone. Raises OSError, also for a FIFO that
    nobody reads: it is not waited for."""
    return os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC | os.O_NONBLOCK, 0o600)


def trim(path: str | Path) -> None:
    """Cut `path` to its last KEPT bytes if it is longer than LIMIT. Must not raise.

    Writers append (O_APPEND), so they go on behind the cut without noticing; what they write while it is made can be
    lost. A limit on the writer (RLIMIT_FSIZE) would hit its transcript too.
    """
    try:
        if os.stat(path).st_size <= LIMIT:
            return
        with open(path, "r+b") as file:
            file.seek(-KEPT, os.SEEK_END)
            file.readline()
            kept = file.read(KEPT)
            file.truncate(0)
        with open(path, "ab") as file:
            file.write(NOTICE + kept)
    except OSError:
        pass  # no log is worth more than the worker


def read_tail(path: str | Path, since: int = 0, most: int = 2000) -> str:
    """Return the last `most` bytes that were written to `path` after offset `since`, as text; "" if there are none."""
    try:
        with open(path, "rb") as file:
            size = file.seek(0, os.SEEK_END)
            file.seek(max(since if since <= size else 0, size - most))
            return file.read(most).decode(errors="replace").strip()
    except OSError:
        return ""
