"""Services that record requests refused by a rate limit, and admit later requests."""

from __future__ import annotations

import asyncio
import random
from typing import TYPE_CHECKING, Final

from orch_protocol.services.policy.rate_limits import (
    ADMIT_REQUEST,
    RELEASE_REQUEST,
    REPORT_RATE_LIMIT,
    AdmitRequest,
    ModelRefused,
    RequestAdmitted,
    RequestEnded,
)
from orch_protocol.services.service import Empty
from orch_protocol.wire.worker_messages import Progress, RateLimited

from ...policy.caller import Caller
from ...tree.interface.topics import RateLimitTopic
from ..dispatch.handlers import handles

if TYPE_CHECKING:
    from ...supervisor.supervisor import Supervisor

__all__ = ["admit_request", "release_request", "report_rate_limit"]

RANDOM: Final = random.SystemRandom()
"""A separate random generator, so that orch does not change the sequence of a program that seeds `random`."""


@handles(REPORT_RATE_LIMIT)
async def report_rate_limit(root: Supervisor, caller: Caller, params: ModelRefused) -> Empty:
    """Record that a model refused a request, and notify all workers."""
    caller.require_agent(root.tree.agents)
    if root.rate_limiter.record_rejection(params.lane, params.wait, _now(), RANDOM.random()):
        root.workers.broadcast("limit", RateLimited(params.lane))
    return Empty()


@handles(ADMIT_REQUEST)
async def admit_request(root: Supervisor, caller: Caller, params: AdmitRequest) -> RequestAdmitted:
    """Wait until the next request may be sent."""
    agent, lane = caller.require_agent(root.tree.agents).spec.id, params.lane
    while (permit := root.rate_limiter.admit(lane, agent, _now())) is None:
        root.waiting_for_admission.add(agent)
        step = root.activity[agent].step if agent in root.activity else 0
        root.activity[agent] = Progress("model", f"{lane}, which has too many requests: waits for its turn", step)
        watchers = [
            root.waiters.watch(topic) for topic in (RateLimitTopic(lane), *root.rate_limiter.release_topics(lane))
        ]
        try:
            await asyncio.wait(
                watchers, timeout=root.rate_limiter.pause(lane, _now()), return_when=asyncio.FIRST_COMPLETED
            )
        finally:
            root.waiting_for_admission.discard(agent)
            for watcher in watchers:
                watcher.cancel()
    return RequestAdmitted(permit)


@handles(RELEASE_REQUEST)
async def release_request(root: Supervisor, caller: Caller, params: RequestEnded) -> Empty:
    """Record that an admitted request has ended, so that the root can admit the next request."""
    agent = caller.require_agent(root.tree.agents).spec.id
    root.rate_limiter.release(params.lane, params.id, agent, ok=params.ok)
    root.waiters.notify(RateLimitTopic(params.lane))
    return Empty()


def _now() -> float:
    return asyncio.get_running_loop().time()
