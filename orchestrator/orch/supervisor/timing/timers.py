"""What a root does later: each of it once, unless it is called off."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Hashable
from itertools import count

__all__ = ["Timers"]


class Timers:
    """Timers on the running event loop. One that is over, or was called off, leaves nothing behind."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._due: dict[Hashable, asyncio.TimerHandle] = {}
        self._numbers = count()

    def __len__(self) -> int:
        return len(self._due)

    def later(self, seconds: float, act: Callable[[], object], key: Hashable = None) -> None:
        """Call `act` in so many seconds, unless `call_off(key)` comes first, or `close`."""
        key = next(self._numbers) if key is None else key
        self.cancel(key)
        # Its callback knows the handle by its key alone: else either would stay until garbage is collected.
        self._due[key] = self._loop.call_later(seconds, self._fire, key, act)

    def cancel(self, key: Hashable) -> None:
        """Do not do what was to be done later by that key, if anything was."""
        timer = self._due.pop(key, None)
        if timer is not None:
            timer.cancel()

    def close(self) -> None:
        """Call off all of it."""
        for key in list(self._due):
            self.cancel(key)

    def _fire(self, key: Hashable, act: Callable[[], object]) -> None:
        del self._due[key]
        act()
