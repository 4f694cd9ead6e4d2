"""What is said to an agent while it works: steering and follow-ups, each heard once, in order."""

from __future__ import annotations

from collections import deque
from collections.abc import Collection
from typing import NamedTuple

from orch_protocol.agent.spec import QueueMode

__all__ = ["SteeringMessage", "SteeringQueues"]


class SteeringMessage(NamedTuple):
    """Something said; `id` names it."""

    id: str
    text: str


class SteeringQueues:
    """Two queues, each with a mode: whether one thing or all that wait are heard at a time."""

    def __init__(self, steering: QueueMode = "one-at-a-time", follow_up: QueueMode | None = None) -> None:
        self.modes(steering, follow_up)
        self._steering: deque[SteeringMessage] = deque()
        self._follow_ups: deque[SteeringMessage] = deque()

    def modes(self, steering: QueueMode, follow_up: QueueMode | None = None) -> None:
        """Let so many things be heard at once from now on; None: as many follow-ups as there is of steering."""
        self._modes = steering, follow_up or steering

    def add(self, said: SteeringMessage, *, follow_up: bool) -> None:
        """Queue `said`; what waits under its id already is not queued twice."""
        queue = self._follow_ups if follow_up else self._steering
        if said.id not in {waiting.id for waiting in queue}:
            queue.append(said)

    def drop(self, ids: Collection[str]) -> list[str]:
        """Forget what `ids` name; return the ids of what waited."""
        gone = [each.id for each in (*self._steering, *self._follow_ups) if each.id in ids]
        self._steering = deque(each for each in self._steering if each.id not in ids)
        self._follow_ups = deque(each for each in self._follow_ups if each.id not in ids)
        return gone

    def take(self, *, stopping: bool) -> list[SteeringMessage]:
        """Return what is to be heard now: steering, or, when the agent would stop and there is none, follow-ups."""
        late = stopping and not self._steering
        queue = self._follow_ups if late else self._steering
        return [queue.popleft() for _ in range(len(queue) if self._modes[late] == "all" else min(1, len(queue)))]
