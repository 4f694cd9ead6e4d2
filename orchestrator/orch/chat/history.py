"""The input history file. Only its owner can read the file, and its size is limited."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

from ..config import paths

__all__ = ["MAX_BYTES", "history_file"]

MAX_BYTES: Final = 1 << 20
"""The size limit. If the file is larger, only its second half is kept."""


def history_file(home: Path) -> Path | None:
    """Create and trim the history file below `home`, and return its path. Return None if the file cannot be created."""
    file = paths.private_dir(home / "console") / "history"
    try:
        descriptor = os.open(file, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        with open(descriptor, "r+b") as opened:
            if os.fstat(descriptor).st_size > MAX_BYTES:
                text = opened.read()
                opened.seek(0)
                opened.write(later_half(text))
                opened.truncate()
    except OSError:
        return None
    return file


def later_half(text: bytes) -> bytes:
    """Return the second half of a history. The result begins at the start of an entry."""
    start = text.find(b"\n# ", len(text) // 2)
    return text[start:] if start >= 0 else b""
