"""Retries of whole requests, from the first byte sent to the last byte read.

A request has no effect except its cost, so a failed request can be repeated. The streamed text of a failed attempt is
discarded.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, Final, TypeVar

import tenacity
from msgspec import Struct

from orch_protocol.core.errors import BackendError, RateLimitError

from ..base import OnRetry, Retry
from .overflow import ReportedLimit

__all__ = ["RequestFailure", "RetryPolicy", "Sleep", "send_with_retries"]

T = TypeVar("T")
Sleep = Callable[[float], Awaitable[None]]

MAX_RETRY_AFTER_SECONDS: Final = 60.0
RANDOM: Final = random.SystemRandom()
"""A separate random generator.

With the global generator, programs that seed `random` would make their agents retry at the same moment.
"""


class RetryPolicy(Struct, frozen=True):
    """The number of attempts and the waits between them. The first wait is `first` seconds.

    Each further wait is twice as long, up to `max_seconds`.

    `refusals` is the number of times that a request may be refused because of rate limits. `attempts` is the number of
    times that a request may fail for other reasons. `max_retry_after_seconds` is the longest wait that a provider may
    request. If the provider requests a longer wait, the request fails.
    """

    attempts: int = 6
    refusals: int = 20
    first: float = 1.0
    max_seconds: float = 30.0
    max_retry_after_seconds: float = MAX_RETRY_AFTER_SECONDS


class RequestFailure(Exception):
    """A request failed with `error`.

    If `transient` is True, a retry may succeed. `wait` is the time in seconds that the provider requested before a
    retry. `rate_limited` means that the provider receives too many requests. `attempts` is the maximum number of
    attempts for this kind of failure; None means the maximum of the policy. `limit` is the limit that the provider
    reported if the request or its answer does not fit in the context window.
    """

    def __init__(
        self,
        error: BackendError,
        *,
        transient: bool,
        wait: float | None = None,
        rate_limited: bool = False,
        attempts: int | None = None,
        limit: ReportedLimit | None = None,
    ) -> None:
        super().__init__(str(error))
        self.error = error
        self.transient = transient
        self.wait = wait
        self.rate_limited = rate_limited
        self.attempts = attempts
        self.limit = limit


async def send_with_retries(
    attempt: Callable[[], Coroutine[Any, Any, T]],
    policy: RetryPolicy,
    on_retry: OnRetry | None = None,
    sleep: Sleep = asyncio.sleep,
    random_source: random.Random = RANDOM,
) -> T:
    """Return the result of `attempt`. Repeat `attempt` while its RequestFailure is transient.

    Raise the last failure's error.
    """

    async def send() -> T:
        return await attempt()

    def should_retry(failure: BaseException) -> bool:
        return (
            isinstance(failure, RequestFailure)
            and failure.transient
            and (failure.wait or 0.0) <= policy.max_retry_after_seconds
        )

    failures = limited = 0

    def should_stop(state: tenacity.RetryCallState) -> bool:
        nonlocal failures, limited
        failure = _failure(state)
        failures += not failure.rate_limited
        limited += failure.attempts is not None
        if failure.attempts is not None and limited >= failure.attempts:
            return True
        return failures >= policy.attempts or state.attempt_number - failures >= policy.refusals

    def wait(state: tenacity.RetryCallState) -> float:
        failure = _failure(state)
        if failure.wait is not None:
            return failure.wait
        pause = min(policy.max_seconds, policy.first * 2.0 ** (state.attempt_number - 1))
        return pause * random_source.uniform(0.5, 1.0)

    def notify_retry(state: tenacity.RetryCallState) -> None:
        if on_retry is not None:
            seconds = state.next_action.sleep if state.next_action is not None else 0.0
            on_retry(Retry(state.attempt_number, seconds, _failure(state).error))

    retrying = tenacity.AsyncRetrying(
        stop=should_stop,
        retry=tenacity.retry_if_exception(should_retry),
        wait=wait,
        before_sleep=notify_retry,
        sleep=sleep,
        reraise=True,
    )
    try:
        return await retrying(send)
    except RequestFailure as failure:
        raise _final_error(failure, retrying.statistics.get("attempt_number", 1), policy) from failure.__cause__


def _failure(state: tenacity.RetryCallState) -> RequestFailure:
    failure = state.outcome.exception() if state.outcome is not None else None
    assert isinstance(failure, RequestFailure)
    return failure


def _final_error(failure: RequestFailure, attempts: int, policy: RetryPolicy) -> BackendError:
    error = failure.error
    if failure.wait is not None and failure.wait > policy.max_retry_after_seconds and isinstance(error, RateLimitError):
        return type(error)(
            f"{error} (it asks to wait {failure.wait:g} s, more than {policy.max_retry_after_seconds:g} s: ask later)"
        )
    return type(error)(f"{error} (asked {attempts} times)") if attempts > 1 else error
