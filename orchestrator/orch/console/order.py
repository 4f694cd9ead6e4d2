"""In which order what was typed is said, and to whom: what stands behind a switch is for whom that leads to."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

__all__ = ["Order"]


class Order:
    """One line after the other, as they were typed."""

    def __init__(self) -> None:
        self._lock = asyncio.Lock()
        self._missed = 0
        self.moving = False
        """Whether it is open just now with whom one is going to talk."""

    @asynccontextmanager
    async def turn(self) -> AsyncIterator[bool]:
        """Wait until all that was typed before is said; tell whether the line is for whom one talks to then.

        It is not when one was to talk to somebody else meanwhile, and does not.
        """
        missed = self._missed
        async with self._lock:
            yield missed == self._missed

    @asynccontextmanager
    async def move(self) -> AsyncIterator[Callable[[], None]]:
        """Let the line that has its turn lead to another agent; call what this yields when it has not."""
        missed: list[int] = []
        self.moving = True
        try:
            yield lambda: missed.append(1)
        except BaseException:
            missed.append(1)
            raise
        finally:
            self.moving = False
            self._missed += len(missed)
