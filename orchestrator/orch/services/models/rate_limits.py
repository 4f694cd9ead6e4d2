"""Requests to models that refuse some for being too many."""

from __future__ import annotations

import asyncio
import random
from typing import TYPE_CHECKING, Final

from orch_protocol.policy.rate_limits import AdmitRequest, ModelRefused, RequestAdmitted, RequestEnded
from orch_protocol.services.budgets import ADMIT_REQUEST, RELEASE_REQUEST, REPORT_RATE_LIMIT
from orch_protocol.services.service import Empty
from orch_protocol.wire.worker_messages import Progress, RateLimited

from ...policy.caller import Caller
from ..dispatch.handlers import handles

if TYPE_CHECKING:
    from ...supervisor.supervisor import Supervisor

__all__ = ["admit_request", "release_request", "report_rate_limit"]

LUCK: Final = random.SystemRandom()
"""Of its own: a program that seeds `random` is to get its own numbers from it, all of them."""


@handles(REPORT_RATE_LIMIT)
async def report_rate_limit(root: Supervisor, caller: Caller, params: ModelRefused) -> Empty:
    """Take in that a model refused a request, and tell all others."""
    caller.require_agent(root.tree.agents)
    if root.lanes.refuse(params.lane, params.wait, _now(), LUCK.random()):
        root.workers.tell_all("limit", RateLimited(params.lane))
    return Empty()


@handles(ADMIT_REQUEST)
async def admit_request(root: Supervisor, caller: Caller, params: AdmitRequest) -> RequestAdmitted:
    """Wait until the next request may be made."""
    agent, lane = caller.require_agent(root.tree.agents).spec.id, params.lane
    while (permit := root.lanes.admit(lane, agent, _now())) is None:
        step = root.activity[agent].step if agent in root.activity else 0
        root.activity[agent] = Progress("model", f"{lane}, which has too many requests: waits for its turn", step)
        watchers = [root.waiters.watch(topic) for topic in (f"lane:{lane}", *root.lanes.holders(lane))]
        try:
            await asyncio.wait(watchers, timeout=root.lanes.pause(lane, _now()), return_when=asyncio.FIRST_COMPLETED)
        finally:
            for watcher in watchers:
                watcher.cancel()
    return RequestAdmitted(permit)


@handles(RELEASE_REQUEST)
async def release_request(root: Supervisor, caller: Caller, params: RequestEnded) -> Empty:
    """A request that was admitted is over: let others go."""
    caller.require_agent(root.tree.agents)
    root.lanes.leave(params.lane, params.id, ok=params.ok)
    root.waiters.tell(f"lane:{params.lane}")
    return Empty()


def _now() -> float:
    return asyncio.get_running_loop().time()
