"""The file of what was typed: for its owner alone, and no longer than it needs to be."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

from ..config import paths

__all__ = ["MOST_BYTES", "history_file"]

MOST_BYTES: Final = 1 << 20
"""Of a longer file the second half is kept."""


def history_file(home: Path) -> Path | None:
    """Return the file below `home`, made and made short enough; None where there can be none."""
    file = paths.private_dir(home / "console") / "history"
    try:
        descriptor = os.open(file, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        with open(descriptor, "r+b") as opened:
            if os.fstat(descriptor).st_size > MOST_BYTES:
                text = opened.read()
                opened.seek(0)
                opened.write(later_half(text))
                opened.truncate()
    except OSError:
        return None
    return file


def later_half(text: bytes) -> bytes:
    """Return the later half of a history, from where an entry begins."""
    start = text.find(b"\n# ", len(text) // 2)
    return text[start:] if start >= 0 else b""
