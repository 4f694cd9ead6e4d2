"""Asking a model again: how long to wait in between is nobody's to know beforehand."""

from __future__ import annotations

import random
from typing import Any

from orch_protocol.core.errors import RateLimitError
from orch_worker.backends.http.retry import Failure, Policy, persist


async def waits(**options: Any) -> list[float]:
    """Return the waits between attempts that fail for a time."""
    waited: list[float] = []

    async def sleep(seconds: float) -> None:
        waited.append(seconds)

    async def attempt() -> str:
        if len(waited) < 4:
            raise Failure(RateLimitError("no"), transient=True)
        return "yes"

    assert await persist(attempt, Policy(first=1.0, most=4.0), sleep=sleep, **options) == "yes"
    return waited


async def test_programs_that_seed_random_do_not_ask_again_in_the_same_moment() -> None:
    """Between half of the pause and all of it; whoever hands in a luck of his own has the waits that this gives."""
    random.seed(7)
    once = await waits()
    random.seed(7)
    assert await waits() != once
    assert all(most / 2 <= wait <= most for wait, most in zip(once, (1, 2, 4, 4), strict=True))
    assert await waits(luck=random.Random(1)) == await waits(luck=random.Random(1))
