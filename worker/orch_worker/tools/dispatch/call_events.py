"""What is told of one call to whoever observes it, from being judged to its end."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final

from orch_protocol.core.messages import ToolUse
from orch_protocol.core.text import scrub
from orch_protocol.policy.policy import Verdict
from orch_protocol.wire.tool_events import CallOutcome, CallReport

__all__ = ["TASKS", "CallReporter", "Observe"]

SHOWN: Final = 2000
TASKS: Final = "tasks"
"""The category of tools whose calls are about the agent's tasks."""

Observe = Callable[[CallReport], None]
"""Told of what became of a call. Must not raise."""


class CallReporter:
    """Tells `observe`, if there is anybody, of `call`. `digest` says which very call it is."""

    def __init__(self, call: ToolUse, category: str, observe: Observe | None, digest: Callable[[], str]) -> None:
        self._call, self._is_task = call, category == TASKS
        self._observe, self._digest = observe, digest
        self._verdict = Verdict()
        self._told = ""
        self._began: float | None = None
        self._returned: float | None = None

    def refused(self, outcome: CallOutcome, reason: str, verdict: Verdict | None = None) -> None:
        """The call is not run."""
        self._verdict = verdict or Verdict("deny")
        self._tell(outcome, reason=reason)

    def began(self, verdict: Verdict) -> None:
        """The call is let run."""
        self._verdict, self._began = verdict, asyncio.get_running_loop().time()
        if not self._is_task:
            self._tell("start", reason=verdict.reason)

    def returned(self) -> None:
        """The tool has returned; what it brought is still to be looked at."""
        self._returned = asyncio.get_running_loop().time()

    def ended(self, result: str, *, success: bool, files_changed: tuple[str, ...] = ()) -> None:
        """The call has run, or was cut off while it did."""
        self._tell("task" if self._is_task else "ran", result=result, success=success, files_changed=files_changed)

    def cut(self) -> None:
        """The turn ended before the call did."""
        if self._began is not None:
            self.ended("the turn ended first", success=False)
        else:
            self.refused("declined", "the turn ended before it was let run", Verdict("ask"))

    def _which(self) -> str:
        try:
            return self._digest()
        except (ValueError, TypeError, OverflowError):  # arguments that no JSON can be
            return ""

    def _tell(
        self,
        outcome: CallOutcome,
        *,
        reason: str = "",
        result: str = "",
        success: bool | None = None,
        files_changed: tuple[str, ...] = (),
    ) -> None:
        if self._observe is None:
            return
        self._told = self._told or self._which()
        ended = success is not None and self._began is not None
        elapsed = (self._returned or asyncio.get_running_loop().time()) - (self._began or 0.0)
        self._observe(
            CallReport(
                outcome,
                self._call.name,
                scrub(self._call.input),
                self._call.id,
                self._told,
                self._verdict.approval,
                reason,
                scrub(result[:SHOWN]),
                success,
                round(elapsed * 1000) if ended else None,
                files_changed,
            )
        )
