"""Whether the processes of agents at work are alive in more than name: their event loops answer.

A process that computes without letting Python go, or waits in a call of the system, beats no more, whatever its threads
do. It is asked from time to time, and whatever is heard of it counts. Where this root itself was asleep (a suspended
machine), nobody is judged by what was missed.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable

from ...tree.agents.state import AgentRecord
from .query_deadlines import CHECK_SECONDS

__all__ = ["GRACE_SECONDS", "Heartbeats"]

GRACE_SECONDS = 30.0
"""What may pass without a word beyond the time that a tool may take: one that lets nobody else run is not more."""


class Heartbeats:
    """When each agent's process was heard, on the clock of the running event loop. `ask` is called with an agent's id
    to let its process say something."""

    def __init__(self, ask: Callable[[str], object]) -> None:
        self._now = asyncio.get_running_loop().time
        self._ask = ask
        self._heard: dict[str, tuple[int, float]] = {}
        self._looked = self._now()

    def beat(self, id: str, incarnation: int) -> None:
        """Something was heard of the agent's process."""
        self._heard[id] = incarnation, self._now()

    def slept(self) -> float:
        """Return for how many seconds nobody looked who should have: nothing follows from silence in them."""
        late = self._now() - self._looked - CHECK_SECONDS
        return late if late > CHECK_SECONDS else 0.0

    def look(self, busy: Iterable[AgentRecord]) -> list[AgentRecord]:
        """Ask the processes of the agents that are `busy`; return those that have been silent for too long."""
        now, slept = self._now(), self.slept()
        self._looked = now
        silent, heard = [], {}
        for node in busy:
            id = node.spec.id
            incarnation, when = self._heard.get(id, (0, now))
            if slept or incarnation != node.incarnation:
                when = now
            heard[id] = node.incarnation, when
            if now - when > node.spec.limits.tool_seconds + GRACE_SECONDS:
                silent.append(node)
            else:
                self._ask(id)
        self._heard = heard
        return silent
