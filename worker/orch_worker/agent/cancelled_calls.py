"""Calls that the end of a turn cuts off: what is said of them, and how they are ended. A call has a result, always."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Final, Literal, TypeAlias

from orch_protocol.core.messages import ToolUse

from ..session.interruption_notes import interrupted_result
from ..tools.dispatch.toolbox import CallOutcome, call_usage, refused_outcome

__all__ = ["Cut", "cut_off", "end_all", "ended", "is_done", "outcome_of"]

GRACE_SECONDS: Final = 1.0
Cut: TypeAlias = Literal["cancelled", "timeout", "budget"]

WHY: Final[dict[str, str]] = {
    "cancelled": "The turn was cancelled.",
    "timeout": "The turn ran out of time.",
    "max_turns": "The turn was stopped after {steps} steps, the most it may take; ask again to let it go on.",
    "max_tokens": "The response was cut off: it reached the most tokens the model may give.",
    "refusal": "The model declined to go on.",
    "error": "The response ended in a way that is not known here: there may have been more of it.",
    "budget": "The turn was stopped after {steps} steps: {short}.",
}


def ended(text: str, stop: str, *, steps: int, short: str) -> str:
    """Return `text`, the last that was said, as a reply: with why the turn stopped, where the agent did not end it."""
    why = WHY.get(stop, "").format(steps=steps, short=short)
    return f"{text}\n\n[{why}]".lstrip() if why else text


def outcome_of(call: ToolUse, task: asyncio.Task[CallOutcome], cut: Cut | None, elapsed: float) -> CallOutcome:
    if is_done(task):
        return task.result()
    return CallOutcome(refused_outcome(call, cut_off(call, cut, began=True)).result, usage=call_usage(elapsed))


def is_done(task: asyncio.Task[CallOutcome]) -> bool:
    return task.done() and not task.cancelled()


def cut_off(call: ToolUse, cut: Cut | None, *, began: bool) -> str:
    """Return the result of a call that the end of the turn cut off, or kept from beginning."""
    if cut == "cancelled":
        return interrupted_result(call.name, began=began)
    why = (WHY | {"budget": "The budget is used up."})[cut] if cut else "the call was cancelled."
    return f"Not finished: {why} It may have had effects." if began else f"Not run: {why}"


async def end_all(tasks: Sequence[asyncio.Task[CallOutcome]]) -> None:
    """Cancel those of `tasks` that still run, and wait a moment for them; one that will not end is left behind."""
    running = [task for task in tasks if not task.done()]
    for task in running:
        task.cancel()
        task.add_done_callback(_retrieve)
    if running:
        await asyncio.wait(running, timeout=GRACE_SECONDS)


def _retrieve(task: asyncio.Task[CallOutcome]) -> None:
    if not task.cancelled():
        task.exception()
