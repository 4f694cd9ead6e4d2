"""The files that artifacts were made from, as they were then, and whether they are so still. May wait for the disk."""

from __future__ import annotations

import hashlib
import os
import stat
from collections.abc import Iterable
from pathlib import Path
from typing import Final

from orch_protocol.core.workspace import Artifact, FileState, InvalidateArtifacts

from ..system.files import regular_open_regular

__all__ = ["artifact_path", "changed_artifacts", "mark_of"]

MOST_HASHED: Final = 256 * 1024
DIGITS: Final = 16
CHANGED: Final = "{path} has changed since"
REMOVED: Final = "{path} is not there any more"


def artifact_path(cwd: Path, path: str) -> str:
    """Return `path`, which may be relative to `cwd`, as artifacts name it: relative where it is below that."""
    whole = os.path.normpath(os.path.join(cwd, path))
    inside = os.path.relpath(whole, cwd)
    return whole if inside.startswith("..") else inside


def mark_of(cwd: Path, path: str) -> FileState | None:
    """Return the file at `path` as it is now, None when there is no such file."""
    try:
        there = os.stat(os.path.join(cwd, path))
    except (OSError, ValueError):
        return None
    if not stat.S_ISREG(there.st_mode):
        return None
    digest = _digest(cwd, path) if there.st_size <= MOST_HASHED else ""
    return FileState(artifact_path(cwd, path), there.st_mtime_ns, there.st_size, digest)


def changed_artifacts(cwd: Path, artifacts: Iterable[Artifact]) -> list[InvalidateArtifacts]:
    """Return which of `artifacts` were made from files that are not what they were, a step for each such file.

    A file that was only touched, or changed and changed back, is what it was: small ones are read to know that.
    """
    users: dict[FileState, list[str]] = {}
    for each in artifacts:
        if not each.stale:
            for mark in each.files:
                users.setdefault(mark, []).append(each.name)
    found = ((mark, names, _why(cwd, mark)) for mark, names in users.items())
    return [InvalidateArtifacts(tuple(names), why) for _, names, why in found if why]


def _why(cwd: Path, mark: FileState) -> str:
    try:
        there = os.stat(os.path.join(cwd, mark.path))
    except (OSError, ValueError):
        return REMOVED.format(path=mark.path)
    if (there.st_mtime_ns, there.st_size) == (mark.mtime, mark.size):
        return ""
    if mark.sha256 and there.st_size == mark.size and _digest(cwd, mark.path) == mark.sha256:
        return ""
    return CHANGED.format(path=mark.path)


def _digest(cwd: Path, path: str) -> str:
    """Return the beginning of the hash of a small file, "" when it cannot be read."""
    try:
        with regular_open_regular(cwd / path) as file:
            return hashlib.sha256(file.read(MOST_HASHED)).hexdigest()[:DIGITS]
    except OSError:
        return ""
