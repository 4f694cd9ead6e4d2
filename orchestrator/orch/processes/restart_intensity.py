"""How often a thing may be restarted before restarting is the fault."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable

__all__ = ["RestartIntensity"]


class RestartIntensity:
    """At most `most` restarts in any `seconds` of `clock` (monotonic)."""

    def __init__(self, most: int = 3, seconds: float = 60.0, clock: Callable[[], float] = time.monotonic) -> None:
        self.most = most
        self.seconds = seconds
        self._clock = clock
        self._restarts: deque[float] = deque()

    def allow(self) -> bool:
        """Count a restart and return True, or return False when there were too many already."""
        now = self._clock()
        while self._restarts and now - self._restarts[0] >= self.seconds:
            self._restarts.popleft()
        if len(self._restarts) >= self.most:
            return False
        self._restarts.append(now)
        return True
