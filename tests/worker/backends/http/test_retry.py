"""Retries of requests: the waits between attempts, and which failures are retried."""

from __future__ import annotations

import random
from typing import Any

import pytest

from orch_protocol.core.errors import BackendError, RateLimitError
from orch_worker.backends.http.failures import Endpoint, unreachable_failure
from orch_worker.backends.http.retry import RequestFailure, RetryPolicy, send_with_retries


async def waits(**options: Any) -> list[float]:
    """Return the waits between attempts, the first four of which fail."""
    waited: list[float] = []

    async def sleep(seconds: float) -> None:
        waited.append(seconds)

    async def attempt() -> str:
        if len(waited) < 4:
            raise RequestFailure(RateLimitError("no"), transient=True)
        return "yes"

    assert await send_with_retries(attempt, RetryPolicy(first=1.0, max_seconds=4.0), sleep=sleep, **options) == "yes"
    return waited


WHO = Endpoint("acme", "m", "http://127.0.0.1:8000/v1", loopback=True, base_url_variable="ACME_BASE_URL")


async def test_refused_loopback_connection_fails_after_one_retry_within_two_seconds() -> None:
    """The error names the address and the setting."""
    waited: list[float] = []
    attempts = 0

    async def sleep(seconds: float) -> None:
        waited.append(seconds)

    async def attempt() -> str:
        nonlocal attempts
        attempts += 1
        raise unreachable_failure(WHO, "refused", refused=True)

    with pytest.raises(BackendError, match=r"http://127\.0\.0\.1:8000/v1 .*Start the server.*ACME_BASE_URL"):
        await send_with_retries(attempt, RetryPolicy(), sleep=sleep)
    assert attempts == 2
    assert sum(waited) <= 2.0


async def test_lost_or_remote_refused_connections_use_all_retries() -> None:
    """Only a connection that is refused on loopback has fewer attempts."""
    elsewhere = Endpoint("acme", "m", "http://acme.example/v1")
    for failure in (
        unreachable_failure(WHO, "reset", refused=False),
        unreachable_failure(elsewhere, "refused", refused=True),
    ):
        assert failure.transient
        assert failure.attempts is None


async def test_retry_jitter_is_independent_of_the_seed_of_random() -> None:
    """A wait is between half and all of the pause, and a given Random makes the waits reproducible."""
    random.seed(7)
    once = await waits()
    random.seed(7)
    assert await waits() != once
    assert all(limit / 2 <= wait <= limit for wait, limit in zip(once, (1, 2, 4, 4), strict=True))
    assert await waits(random_source=random.Random(1)) == await waits(random_source=random.Random(1))
