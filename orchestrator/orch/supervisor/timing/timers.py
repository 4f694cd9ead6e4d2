"""Timers of a root. Each timer fires once unless it is canceled."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Hashable
from itertools import count

__all__ = ["Timers"]


class Timers:
    """Timers on the running event loop. A timer is removed as soon as it has fired or was canceled."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._handles: dict[Hashable, asyncio.TimerHandle] = {}
        self._numbers = count()

    def __len__(self) -> int:
        return len(self._handles)

    def later(self, seconds: float, callback: Callable[[], object], key: Hashable = None) -> None:
        """Call `callback` after `seconds`.

        If a timer with the same `key` exists, replace it. `cancel(key)` cancels the timer.
        """
        key = next(self._numbers) if key is None else key
        self.cancel(key)
        # The callback uses the key to find the handle. A reference to the handle would be a cycle, and the cycle would
        # keep both in memory until a garbage collection.
        self._handles[key] = self._loop.call_later(seconds, self._fire, key, callback)

    def cancel(self, key: Hashable) -> None:
        """Cancel the timer with the key `key`. Do nothing if there is no such timer."""
        timer = self._handles.pop(key, None)
        if timer is not None:
            timer.cancel()

    def close(self) -> None:
        """Cancel all timers."""
        for key in list(self._handles):
            self.cancel(key)

    def _fire(self, key: Hashable, callback: Callable[[], object]) -> None:
        del self._handles[key]
        callback()
