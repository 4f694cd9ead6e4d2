"""A limit on the number of restarts within a period."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable

__all__ = ["RestartIntensity"]


class RestartIntensity:
    """Allows at most `limit` restarts within `seconds`. `clock` returns monotonic seconds."""

    def __init__(self, limit: int = 3, seconds: float = 60.0, clock: Callable[[], float] = time.monotonic) -> None:
        self.limit = limit
        self.seconds = seconds
        self._clock = clock
        self._restarts: deque[float] = deque()

    def allow(self) -> bool:
        """Count a restart and return True. If the limit is reached, return False."""
        now = self._clock()
        while self._restarts and now - self._restarts[0] >= self.seconds:
            self._restarts.popleft()
        if len(self._restarts) >= self.limit:
            return False
        self._restarts.append(now)
        return True
