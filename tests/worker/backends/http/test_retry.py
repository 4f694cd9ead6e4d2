"""Asking a model again: how long to wait in between is nobody's to know beforehand."""

from __future__ import annotations

import random
from typing import Any

import pytest

from orch_protocol.core.errors import BackendError, RateLimitError
from orch_worker.backends.http.failures import Endpoint, unreachable
from orch_worker.backends.http.retry import RequestFailure, RetryPolicy, persist


async def waits(**options: Any) -> list[float]:
    """Return the waits between attempts that fail for a time."""
    waited: list[float] = []

    async def sleep(seconds: float) -> None:
        waited.append(seconds)

    async def attempt() -> str:
        if len(waited) < 4:
            raise RequestFailure(RateLimitError("no"), transient=True)
        return "yes"

    assert await persist(attempt, RetryPolicy(first=1.0, most=4.0), sleep=sleep, **options) == "yes"
    return waited


WHO = Endpoint("acme", "m", "http://127.0.0.1:8000/v1", loopback=True, base_url_variable="ACME_BASE_URL")


async def test_a_refused_connection_on_loopback_fails_after_one_retry_within_two_seconds() -> None:
    """A server of this machine that is not running is not waited for; the error names its address and the setting."""
    waited: list[float] = []
    attempts = 0

    async def sleep(seconds: float) -> None:
        waited.append(seconds)

    async def attempt() -> str:
        nonlocal attempts
        attempts += 1
        raise unreachable(WHO, ConnectionRefusedError("refused"), refused=True)

    with pytest.raises(BackendError, match=r"http://127\.0\.0\.1:8000/v1 .*Start the server.*ACME_BASE_URL"):
        await persist(attempt, RetryPolicy(), sleep=sleep)
    assert attempts == 2
    assert sum(waited) <= 2.0


async def test_a_connection_that_is_lost_or_refused_elsewhere_is_tried_as_often_as_others() -> None:
    """Only a refusal on this machine is final so soon."""
    elsewhere = Endpoint("acme", "m", "http://acme.example/v1")
    for failure in (
        unreachable(WHO, ConnectionResetError("reset"), refused=False),
        unreachable(elsewhere, ConnectionRefusedError("refused"), refused=True),
    ):
        assert failure.transient
        assert failure.attempts is None


async def test_programs_that_seed_random_do_not_ask_again_in_the_same_moment() -> None:
    """Between half of the pause and all of it; whoever hands in a luck of his own has the waits that this gives."""
    random.seed(7)
    once = await waits()
    random.seed(7)
    assert await waits() != once
    assert all(most / 2 <= wait <= most for wait, most in zip(once, (1, 2, 4, 4), strict=True))
    assert await waits(luck=random.Random(1)) == await waits(luck=random.Random(1))
