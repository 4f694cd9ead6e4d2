"""Holds on sessions.

While the root changes the session folder of an agent, no process is started for the agent or for its holders.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager

from orch_protocol.agent.spec import AgentSpec

__all__ = ["SessionHolds"]


class SessionHolds:
    """The agents on hold.

    Only one service holds agents at a time. Code that changes session folders acquires `lock` first.
    """

    def __init__(self) -> None:
        self.lock = asyncio.Lock()
        self.worktrees = asyncio.Lock()
        """A lock for the removal and restoration of worktrees."""
        self._agent_ids: frozenset[str] = frozenset()
        self._released = asyncio.Event()

    @contextmanager
    def hold(self, *ids: str) -> Iterator[None]:
        """Hold the agents `ids` during the `with` block. The caller must have acquired `lock`."""
        self._agent_ids = frozenset(ids)
        self._released.clear()
        try:
            yield
        finally:
            self._agent_ids = frozenset()
            self._released.set()

    async def wait_until_released(self, spec: AgentSpec) -> None:
        """Wait until the agent in `spec` may get a process."""
        while spec.id in self._agent_ids or (spec.kind == "holder" and spec.parent_id in self._agent_ids):
            await self._released.wait()
