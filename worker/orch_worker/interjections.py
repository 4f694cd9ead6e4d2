"""What is said to an agent while it works: steering and follow-ups, each heard once, in order."""

from __future__ import annotations

from collections import deque
from typing import NamedTuple

from orch_protocol.spec import QueueMode

__all__ = ["Interjection", "Interjections"]


class Interjection(NamedTuple):
    """Something said; `id` names it."""

    id: str
    text: str


class Interjections:
    """Two queues. `mode` says whether one thing or all that wait are heard at a time."""

    def __init__(self, mode: QueueMode = "one-at-a-time") -> None:
        self._mode = mode
        self._steering: deque[Interjection] = deque()
        self._follow_ups: deque[Interjection] = deque()

    def add(self, said: Interjection, *, follow_up: bool) -> None:
        """Queue `said`; what waits under its id already is not queued twice."""
        queue = self._follow_ups if follow_up else self._steering
        if said.id not in {waiting.id for waiting in queue}:
            queue.append(said)

    def take(self, *, stopping: bool) -> list[Interjection]:
        """Return what is to be heard now: steering, or, when the agent would stop and there is none, follow-ups."""
        queue = self._steering or (self._follow_ups if stopping else self._steering)
        return [queue.popleft() for _ in range(len(queue) if self._mode == "all" else min(1, len(queue)))]
