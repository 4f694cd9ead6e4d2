"""Waits for the root's permission before requests to a model that has rejected requests because of rate limits."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeVar

from msgspec import Struct

from orch_protocol.services.policy.rate_limits import (
    ADMIT_REQUEST,
    RELEASE_REQUEST,
    REPORT_RATE_LIMIT,
    AdmitRequest,
    ModelRefused,
    RequestEnded,
)
from orch_protocol.services.service import Empty, Service

from ...backends.http.retry import RequestFailure
from ..api.base import ToolContext

__all__ = ["RateLimitClient"]

T = TypeVar("T")
P = TypeVar("P", bound=Struct)


class RateLimitClient:
    """Sends requests without asking until a model rejects a request or the root reports a rejection.

    After a rejection, the root admits each request to this model. A model is identified by its `lane`, written
    `provider:model`.
    """

    def __init__(self, context: ToolContext) -> None:
        self._call_root = context.call_root
        self._limited_lanes: set[str] = set()
        self._reports: set[asyncio.Task[None]] = set()

    def limit(self, lane: str) -> None:
        """Ask the root before each further request to `lane`, until the root ends the limitation."""
        self._limited_lanes.add(lane)

    async def run_admitted(self, lane: str, attempt: Callable[[], Awaitable[T]]) -> T:
        """Wait for permission if necessary. Then call `attempt`, which sends a request to `lane`.

        Return the result of `attempt`, or raise its exception.
        """
        permit = await self._request_admission(lane) if lane in self._limited_lanes else ""
        succeeded = False
        try:
            result = await attempt()
            succeeded = True
            return result
        except RequestFailure as failure:
            if failure.rate_limited:
                self.limit(lane)
                self._report(REPORT_RATE_LIMIT, ModelRefused(lane, failure.wait))
            raise
        finally:
            if permit:
                self._report(RELEASE_REQUEST, RequestEnded(lane, permit, succeeded))

    async def _request_admission(self, lane: str) -> str:
        admission = await self._call_root(ADMIT_REQUEST, AdmitRequest(lane))
        if not admission.id:
            self._limited_lanes.discard(lane)
        return admission.id

    def _report(self, service: Service[P, Empty], params: P) -> None:
        # The task is not awaited, because messages are sent in order, before later requests.
        task = asyncio.get_running_loop().create_task(self._send(service, params))
        self._reports.add(task)
        task.add_done_callback(self._reports.discard)

    async def _send(self, service: Service[P, Empty], params: P) -> None:
        try:
            await self._call_root(service, params)
        except Exception as error:
            print(f"cannot call {service.name!r}: {error}", flush=True)  # The next rejection will be reported.
