"""Hooks that only observe: they are told of everything in order, and the agent does not wait for each of them."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Generic, TypeVar

__all__ = ["Audience"]

T = TypeVar("T")


class Audience(Generic[T]):
    """Hands `tell` what there is to tell, in order and never twice at a time: all that came while it was at work."""

    def __init__(self, tell: Callable[[Sequence[T]], Awaitable[None]]) -> None:
        self._tell = tell
        self._waiting: list[T] = []
        self._work: asyncio.Task[None] | None = None

    @property
    def idle(self) -> bool:
        """Whether everything is told."""
        return self._work is None or self._work.done()

    def add(self, item: T) -> None:
        """Let `item` be told as soon as everything before it is."""
        self._waiting.append(item)
        if self.idle:
            self._work = asyncio.create_task(self._until_told())

    async def told(self) -> None:
        """Return when everything is told."""
        if self._work is not None and not self.idle:
            await asyncio.wait([self._work])

    def stop(self) -> None:
        """Tell nothing more."""
        self._waiting.clear()
        if self._work is not None:
            self._work.cancel()

    async def _until_told(self) -> None:
        while self._waiting:
            items, self._waiting = self._waiting, []
            await self._tell(items)
