"""What an agent's tools keep from one call to the next: running jobs, bound names, stashed results."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any, TypeVar

__all__ = ["ToolState"]

T = TypeVar("T")


class ToolState:
    """One object of each kind, made when first asked for; what has a `close` is closed with the agent."""

    def __init__(self) -> None:
        self._kept: dict[object, Any] = {}
        self._lock = threading.RLock()

    def get(self, kind: object, make: Callable[[], T]) -> T:
        """Return the one object of `kind`, made by `make` if there is none yet. From any thread."""
        with self._lock:
            if kind not in self._kept:
                self._kept[kind] = make()
            kept: T = self._kept[kind]
            return kept

    def close(self) -> None:
        """Close what can be closed, youngest first, and forget all of it."""
        with self._lock:
            kept, self._kept = list(self._kept.values()), {}
        for each in reversed(kept):
            if hasattr(each, "close"):
                each.close()
