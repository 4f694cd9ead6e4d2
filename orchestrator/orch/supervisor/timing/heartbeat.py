"""Detects workers whose event loop has stopped responding.

A process stops answering if code computes without releasing the GIL, or blocks in a system call. The root pings busy
processes. Every frame from a process counts as a sign of life. Missed answers do not count if the root itself was
suspended.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable

from ...tree.agents.state import AgentRecord
from .query_deadlines import CHECK_SECONDS

__all__ = ["GRACE_SECONDS", "Heartbeats"]

GRACE_SECONDS = 30.0
"""Seconds without an answer that are tolerated beyond the time limit of a tool.

A tool may block the event loop until its time limit.
"""


class Heartbeats:
    """The time of the last frame of each agent's process.

    `ping(id)` requests a sign of life from that agent's process.
    """

    def __init__(self, ping: Callable[[str], object]) -> None:
        self._now = asyncio.get_running_loop().time
        self._ping = ping
        self._last_frames: dict[str, tuple[int, float]] = {}
        self._last_check = self._now()

    def beat(self, id: str, incarnation: int) -> None:
        """Record that the agent's process gave a sign of life."""
        self._last_frames[id] = incarnation, self._now()

    def suspended_seconds(self) -> float:
        """Return how many seconds this root was suspended since the last check.

        Processes need not answer during this time.
        """
        suspended = self._now() - self._last_check - CHECK_SECONDS
        return suspended if suspended > CHECK_SECONDS else 0.0

    def find_unresponsive(self, busy: Iterable[AgentRecord]) -> list[AgentRecord]:
        """Ping the processes of the agents in `busy`.

        Return the agents whose processes have not responded for too long.
        """
        now, suspended = self._now(), self.suspended_seconds()
        self._last_check = now
        unresponsive, last_frames = [], {}
        for agent in busy:
            id = agent.spec.id
            incarnation, last_frame_at = self._last_frames.get(id, (0, now))
            if suspended or incarnation != agent.incarnation:
                last_frame_at = now
            last_frames[id] = agent.incarnation, last_frame_at
            if now - last_frame_at > agent.spec.limits.tool_seconds + GRACE_SECONDS:
                unresponsive.append(agent)
            else:
                self._ping(id)
        self._last_frames = last_frames
        return unresponsive
