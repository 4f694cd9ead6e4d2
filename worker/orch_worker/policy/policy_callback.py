"""A function of the user's that judges calls. It makes things stricter only; whatever goes wrong in it is a no."""

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
MOST_REASON: Final = 1000

PolicyFunction = Callable[[PolicyCall, PolicyConfig], Verdict | Awaitable[Verdict]]


class PolicyCallback:
    """Asks `function` about one call at a time, and waits `seconds` for each verdict.

    One that is not async runs in a thread of its own. While one call's thread has not come back, others are denied.
    """

    def __init__(self, function: PolicyFunction, *, seconds: float = FUNCTION_SECONDS) -> None:
        self._function = function
        self._name = getattr(function, "__qualname__", type(function).__name__)
        self._seconds = seconds
        self._turn = asyncio.Lock()
        self._running: asyncio.Future[tuple[Any, str]] | None = None

    async def of(self, call: PolicyCall, rules: PolicyConfig) -> Verdict:
        """Return the function's verdict, a deny with the reason when there is none. Never raises."""
        async with self._turn:
            if self._running is not None and not self._running.done():
                return self._no("is still at work on an earlier call")
            try:
                async with asyncio.timeout(self._seconds):
                    said, error = await self._ask(replace(call, input=deepcopy(call.input)), rules)
            except TimeoutError:
                return self._no(f"did not return within {self._seconds:g} s")
        if error:
            return self._no(f"failed: {error}")
        return self._checked(said)

    async def _ask(self, call: PolicyCall, rules: PolicyConfig) -> tuple[Any, str]:
        """Return what the function returned, or what it raised as text."""
        if inspect.iscoroutinefunction(self._function):
            said: Any = self._function(call, rules)
        else:
            self._running = in_thread(lambda: self._function(call, rules))
            said, error = await asyncio.shield(self._running)
            if error:
                return None, error
        return await await_result(said)

    def _checked(self, said: Any) -> Verdict:
        if not isinstance(said, Verdict):
            return self._no(f"returned {type(said).__name__}, not a Verdict")
        texts = {name: str.__str__(value) for name, value in asdict(said).items() if isinstance(value, str)}
        known = {"approval": RANK, "model": get_args(Model), "data": get_args(DataClass)}
        wrong = {name: texts.get(name) not in values for name, values in known.items()}
        wrong["reason"] = "reason" not in texts
        for name in (name for name, is_wrong in wrong.items() if is_wrong):
            return self._no(f"returned a Verdict whose {name} is {getattr(said, name)!r}")
        reason = texts.pop("reason") or f"the policy function {self._name} says so"
        return convert({**texts, "reason": reason[:MOST_REASON]}, Verdict)

    def _no(self, why: str) -> Verdict:
        return Verdict("deny", "any", f"the policy function {self._name} {why}"[:MOST_REASON])


def load_policy_function(name: str) -> PolicyFunction:
    """Return the function that `policy.function`, "package.module:name", names. Raises ConfigError."""
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
