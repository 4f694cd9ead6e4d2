"""Usage of requests without a recorded response, stored until a turn adds this usage to its own."""

from __future__ import annotations

from orch_protocol.core.messages import Usage

from .base import NOTHING, Backend, lost_by

__all__ = ["LostUsage"]


class LostUsage:
    """Usage of failed and canceled requests of an agent that no turn has counted yet."""

    def __init__(self) -> None:
        self.total = NOTHING

    def add(self, used: Usage) -> None:
        """Count `used`, which is not recorded in a transcript."""
        if used != NOTHING:
            self.total += used

    def take(self, backend: Backend) -> Usage:
        """Return the usage since the last call, including the lost usage of `backend`.

        Return NOTHING if there is no usage.
        """
        lost, self.total = self.total, NOTHING
        used = lost_by(backend)
        return lost if used == NOTHING else used + lost
