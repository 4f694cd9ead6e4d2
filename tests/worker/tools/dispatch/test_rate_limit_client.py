"""Requests that pass the gate: at once while nobody was refused, and when the root says so afterwards."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from orch_protocol.core.errors import BackendError, OrchError, RateLimitError
from orch_protocol.policy.rate_limits import AdmitRequest, ModelRefused, RequestAdmitted, RequestEnded
from orch_protocol.services.service import AnyService, Empty
from orch_worker.backends.http.failures import Endpoint, ProviderError, judge
from orch_worker.backends.http.retry import RequestFailure
from orch_worker.tools.api.base import ToolContext
from orch_worker.tools.dispatch.rate_limit_client import RateLimitClient

LANE = "anthropic:claude-sonnet-5-5"
CROWDED = RequestFailure(RateLimitError("429"), transient=True, wait=7.0, crowded=True)


class Root:
    """A root that admits when it is told to."""

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
    """A root."""
    return Root()


@pytest.fixture
def gate(root: Root) -> RateLimitClient:
    """A gate of an agent of that root."""
    return RateLimitClient(ToolContext(Path("/"), call_root=root))


async def answer() -> str:
    """Answer."""
    return "answer"


async def refuse() -> str:
    """Refuse."""
    raise CROWDED


async def settled() -> None:
    """Let what was begun behind a request come to its end."""
    for _ in range(3):
        await asyncio.sleep(0)


async def test_while_nobody_was_refused_nobody_is_asked(root: Root, gate: RateLimitClient) -> None:
    """A request costs nothing beside itself."""
    assert await gate.through(LANE, answer) == "answer"
    await settled()
    assert root.told == []


async def test_a_refusal_is_told_and_closes_the_gate(root: Root, gate: RateLimitClient) -> None:
    """The next request is admitted first, and says when it is over."""
    with pytest.raises(RequestFailure):
        await gate.through(LANE, refuse)
    await settled()
    assert root.told == [ModelRefused(LANE, 7.0)]
    assert await gate.through(LANE, answer) == "answer"
    await settled()
    assert root.told[1:] == [AdmitRequest(LANE), RequestEnded(LANE, "p1", True)]


async def test_a_refusal_behind_the_gate_is_told_before_the_place_is_given_up(
    root: Root, gate: RateLimitClient
) -> None:
    """Else somebody else would take it."""
    gate.limit(LANE)
    with pytest.raises(RequestFailure):
        await gate.through(LANE, refuse)
    await settled()
    assert root.told == [AdmitRequest(LANE), ModelRefused(LANE, 7.0), RequestEnded(LANE, "p1", False)]


async def test_the_gate_opens_when_the_root_says_that_it_is_over(root: Root, gate: RateLimitClient) -> None:
    """Then nobody is asked any more."""
    gate.limit(LANE)
    root.permit = ""
    for _ in range(2):
        await gate.through(LANE, answer)
    await settled()
    assert root.told == [AdmitRequest(LANE)]


async def test_a_request_waits_until_it_is_admitted(root: Root, gate: RateLimitClient) -> None:
    """And is given up there, like anywhere else."""
    gate.limit(LANE)
    root.open.clear()
    asked: list[int] = []

    async def ask() -> None:
        asked.append(1)

    waiting = asyncio.create_task(gate.through(LANE, ask))
    await settled()
    assert (asked, waiting.done()) == ([], False)
    root.open.set()
    await waiting
    assert asked == [1]
    root.open.clear()
    waiting = asyncio.create_task(gate.through(LANE, ask))
    await settled()
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    assert asked == [1]


async def test_a_cancelled_request_gives_its_place_up(root: Root, gate: RateLimitClient) -> None:
    """Others wait for it."""
    gate.limit(LANE)
    waiting = asyncio.create_task(gate.through(LANE, asyncio.Event().wait))
    await settled()
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    await settled()
    assert root.told[-1] == RequestEnded(LANE, "p1", False)


async def test_other_models_pass(root: Root, gate: RateLimitClient) -> None:
    """A closed gate is one model's."""
    gate.limit(LANE)
    await gate.through("openai:gpt-5.5", answer)
    assert root.told == []


async def test_what_the_root_refuses_is_an_error(root: Root, gate: RateLimitClient) -> None:
    """The request is not made."""
    gate.limit(LANE)
    root.fault = RateLimitError("ask later")
    with pytest.raises(RateLimitError, match="ask later"):
        await gate.through(LANE, answer)


async def test_a_root_that_cannot_be_told_is_no_fault_of_the_request(root: Root, gate: RateLimitClient) -> None:
    """The failure stays the one that it is."""
    root.fault = BackendError("gone")
    with pytest.raises(RequestFailure) as caught:
        await gate.through(LANE, refuse)
    await settled()
    assert caught.value is CROWDED


@pytest.mark.parametrize(
    ("complaint", "crowded"),
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
def test_what_counts_as_crowded(complaint: ProviderError, crowded: bool) -> None:
    """Refusals for being too many, whatever they come as; not those that no wait mends."""
    assert judge(Endpoint("anthropic", "m", "http://x"), complaint).crowded is crowded
