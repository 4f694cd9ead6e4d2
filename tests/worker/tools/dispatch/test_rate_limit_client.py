"""Requests under a rate limit: direct before the first refusal, with admission by the root afterwards."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from orch_protocol.core.errors import BackendError, OrchError, RateLimitError
from orch_protocol.services.policy.rate_limits import AdmitRequest, ModelRefused, RequestAdmitted, RequestEnded
from orch_protocol.services.service import AnyService, Empty
from orch_worker.backends.formats.provider_error import ProviderError
from orch_worker.backends.http.failures import Endpoint, classify_error
from orch_worker.backends.http.retry import RequestFailure
from orch_worker.tools.api.base import ToolContext
from orch_worker.tools.dispatch.rate_limit_client import RateLimitClient

LANE = "anthropic:claude-sonnet-5-5"
CROWDED = RequestFailure(RateLimitError("429"), transient=True, wait=7.0, rate_limited=True)


class Root:
    """A root that admits requests while `open` is set."""

    def __init__(self) -> None:
        self.told: list[Any] = []
        self.permit = "p1"
        self.fault: OrchError | None = None
        self.open = asyncio.Event()
        self.open.set()

    async def __call__(self, called: AnyService, params: Any, seconds: float | None = None) -> Any:  # noqa: ARG002
        self.told.append(params)
        if self.fault is not None:
            raise self.fault
        await self.open.wait()
        return RequestAdmitted(self.permit) if isinstance(params, AdmitRequest) else Empty()


@pytest.fixture
async def root() -> Root:
    return Root()


@pytest.fixture
def gate(root: Root) -> RateLimitClient:
    """The rate limit client of an agent of `root`."""
    return RateLimitClient(ToolContext(Path("/"), call_root=root))


async def answer() -> str:
    return "answer"


async def refuse() -> str:
    raise CROWDED


async def settled() -> None:
    """Let background tasks of a request run to their end."""
    for _ in range(3):
        await asyncio.sleep(0)


async def test_no_admission_is_requested_before_a_rate_limit(root: Root, gate: RateLimitClient) -> None:
    """Before a rate limit, a request causes no message to the root."""
    assert await gate.run_admitted(LANE, answer) == "answer"
    await settled()
    assert root.told == []


async def test_rate_limit_is_reported_and_later_requests_need_admission(root: Root, gate: RateLimitClient) -> None:
    """After a refused request is reported, the next request asks for admission and reports its end."""
    with pytest.raises(RequestFailure):
        await gate.run_admitted(LANE, refuse)
    await settled()
    assert root.told == [ModelRefused(LANE, 7.0)]
    assert await gate.run_admitted(LANE, answer) == "answer"
    await settled()
    assert root.told[1:] == [AdmitRequest(LANE), RequestEnded(LANE, "p1", True)]


async def test_rate_limit_is_reported_before_the_slot_is_released(root: Root, gate: RateLimitClient) -> None:
    """The client reports the refusal first, because another request would otherwise take the slot too early."""
    gate.limit(LANE)
    with pytest.raises(RequestFailure):
        await gate.run_admitted(LANE, refuse)
    await settled()
    assert root.told == [AdmitRequest(LANE), ModelRefused(LANE, 7.0), RequestEnded(LANE, "p1", False)]


async def test_end_of_the_rate_limit_stops_admission_requests(root: Root, gate: RateLimitClient) -> None:
    """After the root admits a request without a permit, later requests are sent directly."""
    gate.limit(LANE)
    root.permit = ""
    for _ in range(2):
        await gate.run_admitted(LANE, answer)
    await settled()
    assert root.told == [AdmitRequest(LANE)]


async def test_request_waits_for_admission(root: Root, gate: RateLimitClient) -> None:
    """A request is sent only after its admission, and the wait can be cancelled."""
    gate.limit(LANE)
    root.open.clear()
    asked: list[int] = []

    async def ask() -> None:
        asked.append(1)

    waiting = asyncio.create_task(gate.run_admitted(LANE, ask))
    await settled()
    assert (asked, waiting.done()) == ([], False)
    root.open.set()
    await waiting
    assert asked == [1]
    root.open.clear()
    waiting = asyncio.create_task(gate.run_admitted(LANE, ask))
    await settled()
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    assert asked == [1]


async def test_cancelled_request_releases_its_slot(root: Root, gate: RateLimitClient) -> None:
    """The client reports the end of a cancelled request, because other requests wait for the slot."""
    gate.limit(LANE)
    waiting = asyncio.create_task(gate.run_admitted(LANE, asyncio.Event().wait))
    await settled()
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    await settled()
    assert root.told[-1] == RequestEnded(LANE, "p1", False)


async def test_rate_limit_applies_to_one_model(root: Root, gate: RateLimitClient) -> None:
    """A request to another model needs no admission."""
    gate.limit(LANE)
    await gate.run_admitted("openai:gpt-5.5", answer)
    assert root.told == []


async def test_refused_admission_is_an_error_and_nothing_is_sent(root: Root, gate: RateLimitClient) -> None:
    """The caller gets the error with which the root refused the admission."""
    gate.limit(LANE)
    root.fault = RateLimitError("ask later")
    sent: list[int] = []

    async def ask() -> None:
        sent.append(1)

    with pytest.raises(RateLimitError, match="ask later"):
        await gate.run_admitted(LANE, ask)
    assert sent == []


async def test_failed_report_to_the_root_keeps_the_original_error(root: Root, gate: RateLimitClient) -> None:
    """The caller gets the error of the request, although the report to the root fails."""
    root.fault = BackendError("gone")
    with pytest.raises(RequestFailure) as caught:
        await gate.run_admitted(LANE, refuse)
    await settled()
    assert caught.value is CROWDED


@pytest.mark.parametrize(
    ("complaint", "rate_limited"),
    [
        (ProviderError("slow down", 429, ("rate_limit_error",)), True),
        (ProviderError("Overloaded", 529, ("overloaded_error",)), True),
        (ProviderError("Overloaded", 200, ("overloaded_error",)), True),
        (ProviderError("slow down", 200, ("rate_limit_exceeded",)), True),
        (ProviderError("oops", 500, ("api_error",)), False),
        (ProviderError("You exceeded your current quota", 429, ("insufficient_quota",)), False),
        (ProviderError("no", 400, ("invalid_request_error",)), False),
    ],
)
def test_rate_limit_errors_are_recognized(complaint: ProviderError, rate_limited: bool) -> None:
    """Rate limits and overload count as crowded with any status. Other errors and an exceeded quota do not."""
    assert classify_error(Endpoint("anthropic", "m", "http://x"), complaint).rate_limited is rate_limited
