"""For how long there was work: by the clock, however many work at once."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["Worked"]


@dataclass(slots=True)
class Worked:
    """Seconds in which at least one turn was under way. Times are those of the entries that begin and end turns."""

    turns: int = 0
    """How many are under way."""
    since: float = 0.0
    before: float = 0.0
    """Seconds until `since`."""

    def begin(self, at: float) -> None:
        """A turn begins."""
        if not self.turns:
            self.since = at
        self.turns += 1

    def end(self, at: float) -> None:
        """A turn ends."""
        self.turns -= 1
        if not self.turns:
            self.before += max(0.0, at - self.since)

    def skip(self, seconds: float) -> None:
        """For so long nobody was there who could have worked."""
        if self.turns:
            self.since += seconds

    def seconds(self, now: float) -> float:
        """Return how long there was work until `now`."""
        return self.before + (max(0.0, now - self.since) if self.turns else 0.0)
