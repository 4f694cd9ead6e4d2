"""Remembers the state of files when the agent read them, so that the agent does not overwrite changes by others."""

from __future__ import annotations

import os
import threading
from typing import Final, TypeAlias

from ..api.base import ToolContext

__all__ = ["ReadStamps", "State", "state_of"]

MAX_FILES: Final = 4_000

State: TypeAlias = tuple[int, int, int, int]
"""The identity of a version of a file: device, inode, size in bytes, modification time in ns."""


def state_of(stat: os.stat_result) -> State:
    """Return the state of a file."""
    return stat.st_dev, stat.st_ino, stat.st_size, stat.st_mtime_ns


class ReadStamps:
    """The states of files that the agent read or wrote in this process. Keys are real paths.

    The latest `limit` are kept.
    """

    def __init__(self, _context: ToolContext, limit: int = MAX_FILES) -> None:
        self._limit = limit
        self._states: dict[str, State] = {}
        self._lock = threading.Lock()

    def record(self, path: str, state: State) -> None:
        """Record that the agent knows the file at `path` in this state."""
        with self._lock:
            self._states.pop(path, None)
            self._states[path] = state
            if len(self._states) > self._limit:
                del self._states[next(iter(self._states))]

    def changed(self, path: str, state: State | None) -> bool:
        """Return whether the file at `path` differs from the state that the agent knows.

        `state` is None for a missing file.
        """
        with self._lock:
            known_state = self._states.get(path)
        return known_state is not None and state is not None and state != known_state

    def forget(self) -> None:
        """Forget all states, because code of the agent ran and may have changed any file."""
        with self._lock:
            self._states.clear()
