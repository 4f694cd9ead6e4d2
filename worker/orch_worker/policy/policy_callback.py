"""Calls the user's policy function. The verdict of this function can only make the rules stricter.

Any failure denies the call.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Awaitable, Callable
from copy import deepcopy
from typing import Any, Final, cast, get_args

from msgspec import convert
from msgspec.structs import asdict, replace

from orch_protocol.core.errors import ConfigError
from orch_protocol.policy.policy import RANK, DataClass, Model, PolicyCall, PolicyConfig, Verdict

from ..system.importing import load
from ..system.threads import await_result, describe_exception, in_thread

__all__ = ["FUNCTION_SECONDS", "PolicyCallback", "PolicyFunction", "load_policy_function"]

FUNCTION_SECONDS: Final = 10.0
MAX_REASON: Final = 1000

PolicyFunction = Callable[[PolicyCall, PolicyConfig], Verdict | Awaitable[Verdict]]


class PolicyCallback:
    """Calls `function` for one tool call at a time, and waits at most `seconds` for each verdict.

    A sync function runs in a thread. While a call that timed out still runs in its thread, other calls are denied.
    """

    def __init__(self, function: PolicyFunction, *, seconds: float = FUNCTION_SECONDS) -> None:
        self._function = function
        self._name = getattr(function, "__qualname__", type(function).__name__)
        self._seconds = seconds
        self._lock = asyncio.Lock()
        self._running: asyncio.Future[tuple[Any, str]] | None = None

    async def evaluate(self, call: PolicyCall, rules: PolicyConfig) -> Verdict:
        """Return the verdict of the function. If the function fails, return a denial with the reason.

        Never raise an exception.
        """
        async with self._lock:
            if self._running is not None and not self._running.done():
                return self._deny("is still at work on an earlier call")
            try:
                async with asyncio.timeout(self._seconds):
                    verdict, error = await self._call_function(replace(call, input=deepcopy(call.input)), rules)
            except TimeoutError:
                return self._deny(f"did not return within {self._seconds:g} s")
        if error:
            return self._deny(f"failed: {error}")
        return self._check_verdict(verdict)

    async def _call_function(self, call: PolicyCall, rules: PolicyConfig) -> tuple[Any, str]:
        """Return the result of the function, or the text of its exception."""
        if inspect.iscoroutinefunction(self._function):
            verdict: Any = self._function(call, rules)
        else:
            self._running = in_thread(lambda: self._function(call, rules))
            verdict, error = await asyncio.shield(self._running)
            if error:
                return None, error
        return await await_result(verdict)

    def _check_verdict(self, verdict: Any) -> Verdict:
        if not isinstance(verdict, Verdict):
            return self._deny(f"returned {type(verdict).__name__}, not a Verdict")
        texts = {name: str.__str__(value) for name, value in asdict(verdict).items() if isinstance(value, str)}
        allowed_values = {"approval": RANK, "model": get_args(Model), "data": get_args(DataClass)}
        invalid = {name: texts.get(name) not in values for name, values in allowed_values.items()}
        invalid["reason"] = "reason" not in texts
        for name in (name for name, is_invalid in invalid.items() if is_invalid):
            return self._deny(f"returned a Verdict whose {name} is {getattr(verdict, name)!r}")
        reason = texts.pop("reason") or f"the policy function {self._name} says so"
        return convert({**texts, "reason": reason[:MAX_REASON]}, Verdict)

    def _deny(self, why: str) -> Verdict:
        return Verdict("deny", "any", f"the policy function {self._name} {why}"[:MAX_REASON])


def load_policy_function(name: str) -> PolicyFunction:
    """Return the function named by `policy.function`, such as "package.module:name".

    Raise ConfigError if the function cannot be loaded.
    """
    try:
        function = load(name)
    except Exception as error:
        raise ConfigError(
            f"cannot import policy.function {name!r}: {describe_exception(error)}. "
            "Install it in the environment of orch, or add it to PYTHONPATH"
        ) from error
    if not callable(function):
        raise ConfigError(f"policy.function {name!r} must be a function; got {type(function).__name__}")
    return cast("PolicyFunction", function)
