"""Finds the files in a folder that can be recorded sessions."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

from orch_worker.session.session_reader import NAME

from ...archival.store.deletion import HOLDERS

__all__ = ["SUFFIXES", "session_files"]

SUFFIXES: Final = (".jsonl", ".json")
"""The ends of the names of files that can be sessions."""


def session_files(folder: Path, on_error: Callable[[OSError], None] | None = None) -> Iterator[Path]:
    """Yield the files in `folder` and below it that can be sessions, in order.

    They can be links without a target, or special files. Hidden files and folders are left out, because they can
    contain credentials. Questions to the holders of an agent's archives are left out, because they are no conversations
    of the user. `on_error` is called for each folder that cannot be read.
    """
    for parent, folders, names in os.walk(folder, onerror=on_error):
        skipped = {HOLDERS} if NAME in names else set()
        folders[:] = sorted(name for name in folders if name[0] != "." and name not in skipped)
        for name in sorted(names):
            if name.endswith(SUFFIXES) and name[0] != ".":
                yield Path(parent, name)
