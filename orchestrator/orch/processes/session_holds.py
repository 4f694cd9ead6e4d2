"""Agents whose folders the root works on itself: neither they nor their holders get a process meanwhile."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager

from orch_protocol.agent.spec import AgentSpec

__all__ = ["SessionHolds"]


class SessionHolds:
    """Who is held, on the running event loop. Whoever works on folders takes `turn` first: one at a time."""

    def __init__(self) -> None:
        self.turn = asyncio.Lock()
        self._held: str | None = None
        self._over = asyncio.Event()

    @contextmanager
    def hold(self, id: str) -> Iterator[None]:
        """Hold the agent until the block is over; the caller has the turn."""
        self._held = id
        self._over.clear()
        try:
            yield
        finally:
            self._held = None
            self._over.set()

    async def over(self, spec: AgentSpec) -> None:
        """Return when the agent that `spec` describes may have a process."""
        while self._held is not None and self._held in (spec.id, spec.parent_id if spec.kind == "holder" else None):
            await self._over.wait()
