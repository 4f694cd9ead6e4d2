"""Log files with the output of processes. Long log files are trimmed. Error messages quote the end of a log file."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

__all__ = ["MAX_LOG_BYTES", "open_log", "read_tail", "trim"]

MAX_LOG_BYTES: Final = 1 << 20
KEPT_LOG_BYTES: Final = 1 << 18
NOTICE: Final = b"[earlier output dropped]\n"


def open_log(path: Path | str) -> int:
    """Return a new descriptor that appends to `path`. Only the owner can read the file.

    Raises OSError. If `path` is a FIFO without a reader, the call also raises OSError and does not wait for a reader.
    """
    return os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC | os.O_NONBLOCK, 0o600)


def trim(path: str | Path) -> None:
    """If `path` is longer than MAX_LOG_BYTES, keep only the last KEPT_LOG_BYTES. Does not raise.

    Writers use O_APPEND, so they continue at the new end of the file. Output that is written during the trimming can be
    lost. A limit on the size of files (RLIMIT_FSIZE) would also apply to the transcript of the writer.
    """
    try:
        if os.stat(path).st_size <= MAX_LOG_BYTES:
            return
        with open(path, "r+b") as file:
            file.seek(-KEPT_LOG_BYTES, os.SEEK_END)
            file.readline()
            kept = file.read(KEPT_LOG_BYTES)
            file.truncate(0)
        with open(path, "ab") as file:
            file.write(NOTICE + kept)
    except OSError:
        pass  # an error of a log file must not stop a worker


def read_tail(path: str | Path, since: int = 0, limit: int = 4000) -> str:
    """Return the last `limit` bytes of `path` as text.

    Return only bytes after the offset `since`. Return "" if there are none.
    """
    try:
        with open(path, "rb") as file:
            size = file.seek(0, os.SEEK_END)
            file.seek(max(since if since <= size else 0, size - limit))
            return file.read(limit).decode(errors="replace").strip()
    except OSError:
        return ""
