"""Finds the files in a folder that can be recorded sessions, and checks paths that the user named."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from difflib import get_close_matches
from pathlib import Path
from typing import Final

from orch_protocol.core.errors import ConfigError
from orch_worker.session.session_reader import NAME

from ...archival.store.deletion import HOLDERS

__all__ = ["SUFFIXES", "check_exists", "session_files"]

SUFFIXES: Final = (".jsonl", ".json")
"""The ends of the names of files that can be sessions."""


def check_exists(path: Path) -> None:
    """Raise ConfigError if there is nothing at `path`, with the most similar name in its folder."""
    try:
        os.stat(path)
        return
    except (FileNotFoundError, NotADirectoryError) as error:
        why = error.strerror
    except OSError:
        return  # reading the path gives the reason
    try:
        names = os.listdir(path.parent)
    except OSError:
        names = []
    similar = get_close_matches(path.name, names, n=1, cutoff=0.8)
    hint = f"did you mean {path.with_name(similar[0])}?" if similar else "pass an existing file or folder"
    raise ConfigError(f"cannot read {path}: {why}; {hint}")


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
