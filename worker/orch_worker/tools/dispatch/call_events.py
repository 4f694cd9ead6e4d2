"""Reports the progress of one call to observers, from the verdict to the end of the call."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final

from orch_protocol.core.messages import ToolUse
from orch_protocol.core.text import scrub
from orch_protocol.policy.policy import Verdict
from orch_protocol.wire.tool_events import CallOutcome, CallReport

__all__ = ["TASKS", "CallReporter", "Observe"]

MAX_RESULT_CHARS: Final = 2000
TASKS: Final = "tasks"
"""The category of tools for the task list."""

Observe = Callable[[CallReport], None]
"""A function that receives reports about a call and must not raise."""


class CallReporter:
    """Reports about `call` to `observe`, if `observe` is set. `digest` returns the digest of the call."""

    def __init__(self, call: ToolUse, category: str, observe: Observe | None, digest: Callable[[], str]) -> None:
        self._call, self._is_task = call, category == TASKS
        self._observe, self._digest = observe, digest
        self._verdict = Verdict()
        self._call_digest = ""
        self._start_time: float | None = None
        self._return_time: float | None = None

    def report_refused(self, outcome: CallOutcome, reason: str, verdict: Verdict | None = None) -> None:
        """Report that the call does not run."""
        self._verdict = verdict or Verdict("deny")
        self._report(outcome, reason=reason)

    def report_start(self, verdict: Verdict) -> None:
        """Report that the call starts."""
        self._verdict, self._start_time = verdict, asyncio.get_running_loop().time()
        if not self._is_task:
            self._report("start", reason=verdict.reason)

    def record_return(self) -> None:
        """Record that the tool has returned. The result has not been checked yet."""
        self._return_time = asyncio.get_running_loop().time()

    def report_end(self, result: str, *, success: bool, files_changed: tuple[str, ...] = ()) -> None:
        """Report that the call has ended, or that the call was interrupted while it ran."""
        self._report("task" if self._is_task else "ran", result=result, success=success, files_changed=files_changed)

    def report_interrupted(self) -> None:
        """Report that the turn ended before the call."""
        if self._start_time is not None:
            self.report_end("the turn ended first", success=False)
        else:
            self.report_refused("declined", "the turn ended before the call was allowed to run", Verdict("ask"))

    def _compute_digest(self) -> str:
        try:
            return self._digest()
        except (ValueError, TypeError, OverflowError):  # The arguments cannot be encoded as JSON.
            return ""

    def _report(
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
        self._call_digest = self._call_digest or self._compute_digest()
        has_ended = success is not None and self._start_time is not None
        elapsed = (self._return_time or asyncio.get_running_loop().time()) - (self._start_time or 0.0)
        self._observe(
            CallReport(
                outcome,
                self._call.name,
                scrub(self._call.input),
                self._call.id,
                self._call_digest,
                self._verdict.approval,
                reason,
                scrub(result[:MAX_RESULT_CHARS]),
                success,
                round(elapsed * 1000) if has_ended else None,
                files_changed,
            )
        )
