"""Before a request to a model that has refused some for being too many: the root says when it may be made."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeVar

from msgspec import Struct

from orch_protocol.policy.rate_limits import AdmitRequest, ModelRefused, RequestEnded
from orch_protocol.services.budgets import ADMIT_REQUEST, RELEASE_REQUEST, REPORT_RATE_LIMIT
from orch_protocol.services.service import Empty, Service

from ...backends.http.retry import RequestFailure
from ..api.base import ToolContext

__all__ = ["RateLimitClient"]

T = TypeVar("T")
P = TypeVar("P", bound=Struct)


class RateLimitClient:
    """Open, until a model refuses a request, or the root says that it refused somebody else's; then one at a time asks.

    A model is a `lane`, written `provider:model`.
    """

    def __init__(self, context: ToolContext) -> None:
        self._call_root = context.call_root
        self._closed: set[str] = set()
        self._telling: set[asyncio.Task[None]] = set()

    def limit(self, lane: str) -> None:
        """Ask the root before each further request to `lane`, until it says that this is over."""
        self._closed.add(lane)

    async def through(self, lane: str, attempt: Callable[[], Awaitable[T]]) -> T:
        """Return what `attempt`, one request to `lane`, returns; it begins when it may. Raises what it raises."""
        permit = await self._admitted(lane) if lane in self._closed else ""
        ok = False
        try:
            result = await attempt()
            ok = True
            return result
        except RequestFailure as failure:
            if failure.crowded:
                self.limit(lane)
                self._tell(REPORT_RATE_LIMIT, ModelRefused(lane, failure.wait))
            raise
        finally:
            if permit:
                self._tell(RELEASE_REQUEST, RequestEnded(lane, permit, ok))

    async def _admitted(self, lane: str) -> str:
        admitted = await self._call_root(ADMIT_REQUEST, AdmitRequest(lane))
        if not admitted.id:
            self._closed.discard(lane)
        return admitted.id

    def _tell(self, service: Service[P, Empty], params: P) -> None:
        # Nobody waits for the answer: what is told goes out before anything that is asked afterwards.
        task = asyncio.get_running_loop().create_task(self._told(service, params))
        self._telling.add(task)
        task.add_done_callback(self._telling.discard)

    async def _told(self, service: Service[P, Empty], params: P) -> None:
        try:
            await self._call_root(service, params)
        except Exception as error:
            print(f"cannot call {service.name!r}: {error}", flush=True)  # the root finds out by the next refusal
