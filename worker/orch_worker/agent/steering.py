"""Queues of steering messages and follow-ups. Each message is delivered once, in order."""

from __future__ import annotations

from collections import deque
from collections.abc import Collection
from typing import NamedTuple

from orch_protocol.agent.spec import QueueMode

__all__ = ["SteeringMessage", "SteeringQueues"]


class SteeringMessage(NamedTuple):
    """A queued message with its id."""

    id: str
    text: str
    acknowledged: bool = True


class SteeringQueues:
    """Two queues. The mode of a queue is either to deliver one message at a time, or to deliver all messages."""

    def __init__(self, steering: QueueMode = "one-at-a-time", follow_up: QueueMode | None = None) -> None:
        self.set_modes(steering, follow_up)
        self._steering: deque[SteeringMessage] = deque()
        self._follow_ups: deque[SteeringMessage] = deque()

    def set_modes(self, steering: QueueMode, follow_up: QueueMode | None = None) -> None:
        """Set the modes of the queues. If `follow_up` is None, both queues have the mode `steering`."""
        self._modes = steering, follow_up or steering

    def add(self, message: SteeringMessage, *, follow_up: bool) -> None:
        """Queue `message`, unless a message with the same id is already queued."""
        queue = self._follow_ups if follow_up else self._steering
        if message.id not in {queued.id for queued in queue}:
            queue.append(message)

    def drop(self, ids: Collection[str]) -> list[str]:
        """Remove messages by id. Return the ids of the messages that were queued."""
        removed_ids = [each.id for each in (*self._steering, *self._follow_ups) if each.id in ids]
        self._steering = deque(each for each in self._steering if each.id not in ids)
        self._follow_ups = deque(each for each in self._follow_ups if each.id not in ids)
        return removed_ids

    def take(self, *, stopping: bool) -> list[SteeringMessage]:
        """Return the messages to deliver now. Steering messages come first.

        If there are no steering messages and the agent is `stopping`, return follow-ups.
        """
        take_follow_ups = stopping and not self._steering
        queue = self._follow_ups if take_follow_ups else self._steering
        if not queue:
            return []
        return [
            queue.popleft() for _ in range(len(queue) if self._modes[take_follow_ups] == "all" else min(1, len(queue)))
        ]
