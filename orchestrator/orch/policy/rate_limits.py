"""Models that refuse requests for being too many, and who may make the next one. No I/O, and no clock of its own.

One refusal holds for the whole tree. For as long as the model asks, or twice as long each time if it does not say,
nobody asks it; then one request goes, and with each that is answered one more may be under way, so that the number
doubles with every round. The next refusal halves it, and from then on each round adds one.
"""

from __future__ import annotations

from typing import Final

from msgspec import Struct, field

from orch_protocol.core.ids import new_id

from ..tree.agents.state import TreeState

__all__ = ["RateLimiter"]

FIRST_SECONDS: Final = 1.0
MAX_BACKOFF_SECONDS: Final = 30.0
MAX_PAUSE_SECONDS: Final = 60.0
"""Longer than this nobody is let wait: everybody asks, one after the other, and is told by the model itself."""
QUIET_SECONDS: Final = 60.0
"""So long after the last refusal it is over."""
JITTER: Final = 0.1
"""By how much of itself a wait may grow: other programs with the same key come back at the same moment."""


class _Permit(Struct, frozen=True):
    agent: str
    incarnation: int


class _RateLimitedModel(Struct):
    width: int = 1
    answered: int = 0
    refusals: int = 0
    until: float = 0.0
    refused: float = 0.0
    permits: dict[str, _Permit] = field(default_factory=dict)


class RateLimiter:
    """The crowded lanes, by name: `provider:model`. Times are seconds on whatever clock `now` is."""

    def __init__(self, nodes: TreeState) -> None:
        self._nodes = nodes
        self._lanes: dict[str, _RateLimitedModel] = {}

    def names(self) -> tuple[str, ...]:
        """Return the lanes that are crowded, as far as is known."""
        return tuple(self._lanes)

    def refuse(self, name: str, wait: float | None, now: float, chance: float) -> bool:
        """Take in that a request was refused, to be repeated in `wait` seconds; return whether that is news.

        `chance` is a random number from 0 to 1.
        """
        lane = self._lanes.get(name)
        news = lane is None
        if lane is None:
            lane = self._lanes[name] = _RateLimitedModel()
        if now >= lane.until:
            # Those that were under way together are refused together: that is one refusal.
            lane.refusals += 1
            lane.width, lane.answered = max(1, lane.width // 2), 0
        pause = wait if wait is not None else min(MAX_BACKOFF_SECONDS, FIRST_SECONDS * 2 ** (lane.refusals - 1))
        if pause > MAX_PAUSE_SECONDS:
            pause = 0.0
        lane.until = max(lane.until, now + pause * (1 + JITTER * chance))
        lane.refused = now
        return news

    def admit(self, name: str, agent: str, now: float) -> str | None:
        """Return the permit for a request of the agent; "" when the lane is not crowded any more, None for not yet."""
        lane = self._lanes.get(name)
        if lane is None:
            return ""
        if now >= lane.refused + QUIET_SECONDS and now >= lane.until:
            del self._lanes[name]
            return ""
        if now < lane.until or len(self._under_way(lane)) >= lane.width:
            return None
        id = new_id()
        lane.permits[id] = _Permit(agent, self._nodes[agent].incarnation)
        return id

    def leave(self, name: str, id: str, *, ok: bool) -> None:
        """A request that was admitted is over."""
        lane = self._lanes.get(name)
        if lane is not None and lane.permits.pop(id, None) is not None and ok:
            lane.answered += 1
            if lane.refusals == 1 or lane.answered >= lane.width:
                lane.width, lane.answered = lane.width + 1, 0

    def pause(self, name: str, now: float) -> float | None:
        """Return in how many seconds it is worth to ask again, None when somebody has to leave first."""
        lane = self._lanes.get(name)
        if lane is None:
            return 0.0
        return lane.until - now if lane.until > now else None

    def holders(self, name: str) -> list[str]:
        """Return the topics by which it is told that processes end whose requests are under way."""
        lane = self._lanes.get(name, _RateLimitedModel())
        return [f"gone:{permit.agent}:{permit.incarnation}" for permit in self._under_way(lane).values()]

    def _under_way(self, lane: _RateLimitedModel) -> dict[str, _Permit]:
        lane.permits = {
            id: permit
            for id, permit in lane.permits.items()
            if (node := self._nodes.get(permit.agent)) is not None
            and node.running
            and node.incarnation == permit.incarnation
        }
        return lane.permits
