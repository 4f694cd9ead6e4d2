"""Rate limits. This module delays requests of all agents to a model that has rejected requests. No I/O, no clock.

A model rejects requests when it gets too many of them. After a rejection, the requests of all agents wait for the time
that the response states. If the response states no time, the delay doubles with each rejection. After the delay, one
request is allowed. Each answer raises the number of concurrent requests by one, so the number doubles in every round.
The next rejection halves the number. After a second rejection, each round raises the number by one.
"""

from __future__ import annotations

from typing import Final

from msgspec import Struct, field

from orch_protocol.core.ids import new_id

from ..tree.agents.state import TreeState
from ..tree.interface.topics import ExitTopic, Topic

__all__ = ["RateLimiter"]

FIRST_SECONDS: Final = 1.0
MAX_BACKOFF_SECONDS: Final = 30.0
MAX_PAUSE_SECONDS: Final = 60.0
"""The longest delay. If a response requests a longer one, its request fails, and other requests are not delayed."""
QUIET_SECONDS: Final = 60.0
"""The rate limit ends this number of seconds after the last rejection."""
JITTER: Final = 0.1
"""The maximum fraction by which a delay grows at random.

Without the random part, other programs with the same key may retry at the same time.
"""


class _Permit(Struct, frozen=True):
    agent: str
    incarnation: int


class _RateLimitedModel(Struct):
    max_concurrent: int = 1
    answered: int = 0
    rejections: int = 0
    paused_until: float = 0.0
    last_rejection: float = 0.0
    permits: dict[str, _Permit] = field(default_factory=dict)


class RateLimiter:
    """The models that limit their rate, by the name `provider:model`.

    All times are in seconds of the clock that the caller uses for `now`.
    """

    def __init__(self, agents: TreeState) -> None:
        self._agents = agents
        self._models: dict[str, _RateLimitedModel] = {}

    def names(self) -> tuple[str, ...]:
        """Return the names of the models known to be rate-limited."""
        return tuple(self._models)

    def record_rejection(self, name: str, wait: float | None, now: float, jitter_fraction: float) -> bool:
        """Record that a model rejected a request. Return whether the model was not rate-limited before.

        `wait` is the delay that the response requests. `jitter_fraction` is a random number from 0 to 1.
        """
        model = self._models.get(name)
        is_new = model is None
        if model is None:
            model = self._models[name] = _RateLimitedModel()
        if now >= model.paused_until:
            # Rejections of concurrent requests count as one rejection.
            model.rejections += 1
            model.max_concurrent, model.answered = max(1, model.max_concurrent // 2), 0
        pause = wait if wait is not None else min(MAX_BACKOFF_SECONDS, FIRST_SECONDS * 2 ** (model.rejections - 1))
        if pause > MAX_PAUSE_SECONDS:
            pause = 0.0
        model.paused_until = max(model.paused_until, now + pause * (1 + JITTER * jitter_fraction))
        model.last_rejection = now
        return is_new

    def admit(self, name: str, agent: str, now: float) -> str | None:
        """Return a permit for a request of the agent.

        Return "" if the model is not rate-limited. Return None if the request must wait.
        """
        model = self._models.get(name)
        if model is None:
            return ""
        if now >= model.last_rejection + QUIET_SECONDS and now >= model.paused_until:
            del self._models[name]
            return ""
        if now < model.paused_until or len(self._active_permits(model)) >= model.max_concurrent:
            return None
        id = new_id()
        model.permits[id] = _Permit(agent, self._agents[agent].incarnation)
        return id

    def release(self, name: str, id: str, agent: str, *, ok: bool) -> None:
        """Release the permit `id` of a request of `agent` that has ended. Permits of other agents stay."""
        model = self._models.get(name)
        permit = model.permits.get(id) if model is not None else None
        if model is None or permit is None or permit.agent != agent:
            return
        del model.permits[id]
        if ok:
            model.answered += 1
            if model.rejections == 1 or model.answered >= model.max_concurrent:
                model.max_concurrent, model.answered = model.max_concurrent + 1, 0

    def pause(self, name: str, now: float) -> float | None:
        """Return the seconds until the next request is possible. Return None if another request must end first."""
        model = self._models.get(name)
        if model is None:
            return 0.0
        return model.paused_until - now if model.paused_until > now else None

    def release_topics(self, name: str) -> list[Topic]:
        """Return the topics that announce the exit of those processes that have permits."""
        model = self._models.get(name, _RateLimitedModel())
        return [ExitTopic(permit.agent, permit.incarnation) for permit in self._active_permits(model).values()]

    def _active_permits(self, model: _RateLimitedModel) -> dict[str, _Permit]:
        model.permits = {
            id: permit
            for id, permit in model.permits.items()
            if (holder := self._agents.get(permit.agent)) is not None
            and holder.running
            and holder.incarnation == permit.incarnation
        }
        return model.permits
