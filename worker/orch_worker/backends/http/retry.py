"""Asking again: one policy around a whole request, from the first byte sent to the last one read.

A request has no effect but its price, so it can be made again; what was streamed of a failed one counts for nothing.
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

__all__ = ["RequestFailure", "RetryPolicy", "Sleep", "persist"]

T = TypeVar("T")
Sleep = Callable[[float], Awaitable[None]]

LONGEST_WAIT: Final = 60.0
LUCK: Final = random.SystemRandom()
"""Of its own: agents of programs that seed `random` would all ask again in the same moment."""


class RetryPolicy(Struct, frozen=True):
    """How often to ask, and how long to wait in between: `first` seconds, twice as long each time, at most `most`.

    To be one of too many is nobody's fault, and passes: it may happen `refusals` times, anything else `attempts` times.
    A provider that names a wait is obeyed up to `longest` seconds; beyond that, asking earlier would be refused too.
    """

    attempts: int = 6
    refusals: int = 20
    first: float = 1.0
    most: float = 30.0
    longest: float = LONGEST_WAIT


class RequestFailure(Exception):
    """A request failed with `error`. `transient`: it may do better later, after `wait` seconds if the provider said.

    `crowded`: it was one too many, as the next ones would be, whoever makes them. `attempts`: fewer than the policy
    allows are made for this kind of failure; None for no such limit.
    """

    def __init__(
        self,
        error: BackendError,
        *,
        transient: bool,
        wait: float | None = None,
        crowded: bool = False,
        attempts: int | None = None,
    ) -> None:
        super().__init__(str(error))
        self.error = error
        self.transient = transient
        self.wait = wait
        self.crowded = crowded
        self.attempts = attempts


async def persist(
    attempt: Callable[[], Coroutine[Any, Any, T]],
    policy: RetryPolicy,
    on_retry: OnRetry | None = None,
    sleep: Sleep = asyncio.sleep,
    luck: random.Random = LUCK,
) -> T:
    """Return what `attempt` returns, asking again while its Failure is transient; raise the last one's error."""

    async def ask() -> T:
        return await attempt()

    def again(failure: BaseException) -> bool:
        return isinstance(failure, RequestFailure) and failure.transient and (failure.wait or 0.0) <= policy.longest

    failures = limited = 0

    def enough(state: tenacity.RetryCallState) -> bool:
        nonlocal failures, limited
        failure = _failure(state)
        failures += not failure.crowded
        limited += failure.attempts is not None
        if failure.attempts is not None and limited >= failure.attempts:
            return True
        return failures >= policy.attempts or state.attempt_number - failures >= policy.refusals

    def wait(state: tenacity.RetryCallState) -> float:
        failure = _failure(state)
        if failure.wait is not None:
            return failure.wait
        pause = min(policy.most, policy.first * 2.0 ** (state.attempt_number - 1))
        return pause * luck.uniform(0.5, 1.0)

    def tell(state: tenacity.RetryCallState) -> None:
        if on_retry is not None:
            seconds = state.next_action.sleep if state.next_action is not None else 0.0
            on_retry(Retry(state.attempt_number, seconds, _failure(state).error))

    asking = tenacity.AsyncRetrying(
        stop=enough,
        retry=tenacity.retry_if_exception(again),
        wait=wait,
        before_sleep=tell,
        sleep=sleep,
        reraise=True,
    )
    try:
        return await asking(ask)
    except RequestFailure as failure:
        raise _last_word(failure, asking.statistics.get("attempt_number", 1), policy) from failure.__cause__


def _failure(state: tenacity.RetryCallState) -> RequestFailure:
    failure = state.outcome.exception() if state.outcome is not None else None
    assert isinstance(failure, RequestFailure)
    return failure


def _last_word(failure: RequestFailure, attempts: int, policy: RetryPolicy) -> BackendError:
    error = failure.error
    if failure.wait is not None and failure.wait > policy.longest and isinstance(error, RateLimitError):
        return type(error)(f"{error} (it asks to wait {failure.wait:g} s, more than {policy.longest:g} s: ask later)")
    return type(error)(f"{error} (asked {attempts} times)") if attempts > 1 else error
