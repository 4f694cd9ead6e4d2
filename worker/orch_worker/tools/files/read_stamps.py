"""Files as an agent knows them, so that it does not write over what somebody else has changed since it looked."""

from __future__ import annotations

import os
import threading
from typing import Final, TypeAlias

from ..api.base import ToolContext

__all__ = ["ReadStamps", "State", "state_of"]

MOST: Final = 4_000

State: TypeAlias = tuple[int, int, int, int]
"""What is another when a file was changed or replaced: device, inode, size in bytes, time of the change in ns."""


def state_of(stat: os.stat_result) -> State:
    """Return the state of a file."""
    return stat.st_dev, stat.st_ino, stat.st_size, stat.st_mtime_ns


class ReadStamps:
    """The files that one agent has read or written in this process, by their real paths: the latest `most` of them."""

    def __init__(self, _context: ToolContext, most: int = MOST) -> None:
        self._most = most
        self._states: dict[str, State] = {}
        self._lock = threading.Lock()

    def note(self, path: str, state: State) -> None:
        """The agent knows what the file at `path` holds in this state."""
        with self._lock:
            self._states.pop(path, None)
            self._states[path] = state
            if len(self._states) > self._most:
                del self._states[next(iter(self._states))]

    def changed(self, path: str, state: State | None) -> bool:
        """Say whether the file at `path`, None for one that is not there, is another than the agent knows."""
        with self._lock:
            known = self._states.get(path)
        return known is not None and state is not None and state != known

    def forget(self) -> None:
        """Code of the agent's own ran, and may have changed anything: nothing is known of files any more."""
        with self._lock:
            self._states.clear()
