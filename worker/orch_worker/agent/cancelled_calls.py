"""End the calls that are still running when a turn ends, and create their results. Each call needs a result."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Final, Literal, TypeAlias

from orch_protocol.core.messages import ToolUse

from ..session.interruption_notes import interrupted_result
from ..tools.dispatch.toolbox import CallOutcome, call_usage, refused_outcome

__all__ = ["CutReason", "cancel_tasks", "finished_outcome", "is_done", "reply_text", "unfinished_result"]

GRACE_SECONDS: Final = 1.0
CutReason: TypeAlias = Literal["cancelled", "timeout", "budget"]

STOP_REASON_TEXTS: Final[dict[str, str]] = {
    "cancelled": "The turn was cancelled.",
    "timeout": "The turn ran out of time.",
    "max_turns": "The turn was stopped after {steps} steps, the maximum; ask again to let it continue.",
    "max_tokens": "The response was cut off: it reached the maximum number of tokens.",
    "refusal": "The model declined to go on.",
    "error": "The response ended for an unknown reason and may be incomplete.",
    "budget": "The turn was stopped after {steps} steps: {exceeded_budget}.",
}


def reply_text(text: str, stop: str, *, steps: int, exceeded_budget: str) -> str:
    """Return the text of the reply: the last `text`, and the reason if the turn was stopped."""
    reason = STOP_REASON_TEXTS.get(stop, "").format(steps=steps, exceeded_budget=exceeded_budget)
    return f"{text}\n\n[{reason}]".lstrip() if reason else text


def finished_outcome(
    call: ToolUse, task: asyncio.Task[CallOutcome], cut: CutReason | None, elapsed: float
) -> CallOutcome:
    if is_done(task):
        return task.result()
    return CallOutcome(
        refused_outcome(call, unfinished_result(call, cut, began=True)).result, usage=call_usage(elapsed)
    )


def is_done(task: asyncio.Task[CallOutcome]) -> bool:
    return task.done() and not task.cancelled()


def unfinished_result(call: ToolUse, cut: CutReason | None, *, began: bool) -> str:
    """Return the result of a call that was not finished at the end of the turn. The call may not have started."""
    if cut == "cancelled":
        return interrupted_result(call.name, began=began)
    reason = (STOP_REASON_TEXTS | {"budget": "The budget is used up."})[cut] if cut else "the call was cancelled."
    return f"Not finished: {reason} It may have had effects." if began else f"Not run: {reason}"


async def cancel_tasks(tasks: Sequence[asyncio.Task[CallOutcome]]) -> None:
    """Cancel the running tasks and wait briefly. Abandon tasks that ignore the cancellation."""
    running = [task for task in tasks if not task.done()]
    for task in running:
        task.cancel()
        task.add_done_callback(_retrieve_exception)
    if running:
        await asyncio.wait(running, timeout=GRACE_SECONDS)


def _retrieve_exception(task: asyncio.Task[CallOutcome]) -> None:
    if not task.cancelled():
        task.exception()
