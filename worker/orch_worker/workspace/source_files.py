"""Detects changes of the files from which artifacts were made. The functions may wait for the disk."""

from __future__ import annotations

import hashlib
import os
import stat
from collections.abc import Iterable
from pathlib import Path
from typing import Final

from orch_protocol.core.workspace import Artifact, FileState, InvalidateArtifacts

from ..system.files import open_regular_file

__all__ = ["artifact_path", "changed_artifacts", "read_file_state"]

MAX_HASHED: Final = 256 * 1024
DIGITS: Final = 16
CHANGED: Final = "{path} has changed since"
REMOVED: Final = "{path} no longer exists"


def artifact_path(cwd: Path, path: str) -> str:
    """Return `path` in the form that artifacts use. A path inside `cwd` becomes relative to `cwd`."""
    absolute_path = os.path.normpath(os.path.join(cwd, path))
    relative_path = os.path.relpath(absolute_path, cwd)
    return absolute_path if relative_path.startswith("..") else relative_path


def read_file_state(cwd: Path, path: str) -> FileState | None:
    """Return the current state of the regular file at `path`. Return None if the file does not exist."""
    try:
        status = os.stat(os.path.join(cwd, path))
    except (OSError, ValueError):
        return None
    if not stat.S_ISREG(status.st_mode):
        return None
    digest = _digest(cwd, path) if status.st_size <= MAX_HASHED else ""
    return FileState(artifact_path(cwd, path), status.st_mtime_ns, status.st_size, digest)


def changed_artifacts(cwd: Path, artifacts: Iterable[Artifact]) -> list[InvalidateArtifacts]:
    """Return a step for each changed file. The step invalidates the artifacts that were made from the file.

    Small files are compared by content, so that a changed timestamp alone does not count as a change.
    """
    users: dict[FileState, list[str]] = {}
    for each in artifacts:
        if not each.stale:
            for state in each.files:
                users.setdefault(state, []).append(each.name)
    found = ((state, names, _change_reason(cwd, state)) for state, names in users.items())
    return [InvalidateArtifacts(tuple(names), why) for _, names, why in found if why]


def _change_reason(cwd: Path, state: FileState) -> str:
    try:
        status = os.stat(os.path.join(cwd, state.path))
    except (OSError, ValueError):
        return REMOVED.format(path=state.path)
    if (status.st_mtime_ns, status.st_size) == (state.mtime, state.size):
        return ""
    if state.sha256 and status.st_size == state.size and _digest(cwd, state.path) == state.sha256:
        return ""
    return CHANGED.format(path=state.path)


def _digest(cwd: Path, path: str) -> str:
    """Return the beginning of the hash of a small file, or "" if it cannot be read."""
    try:
        with open_regular_file(cwd / path) as file:
            return hashlib.sha256(file.read(MAX_HASHED)).hexdigest()[:DIGITS]
    except OSError:
        return ""
