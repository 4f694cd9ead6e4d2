"""Adds up what models and tools are used for, in all agents of a user, day by day; `orch costs` shows it.

Past `warn_usd` in a day each agent is told once a turn, so that it can come to an end; budgets are what stops it.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

from orch_protocol.hooks.events import Event, Failed, ProviderResponse, ToolCall, ToolReturn, TurnEnd
from orch_protocol.hooks.options import HookOptions

from ..hook import Hook, make_hook
from .usage_log import DailyUsage, ModelUsage, ToolUsage, UsageLog, add_usage, day_of

__all__ = ["FILE", "make"]

NAME: Final = "cost_tracker"
FILE: Final = "costs.json"
WARNED: Final = (
    "All agents together have cost ${spent:.2f} today, past the ${limit:.2f} that were meant. Come to an end: say what "
    "you have, and what is left to do."
)


def make(options: HookOptions) -> tuple[Hook, ...]:
    """Return the hook, as `options` have it."""
    limit = options.cost_tracker.warn_usd
    ledger = UsageLog(Path(options.evidence) / FILE)
    sums: dict[str, DailyUsage] = {}
    began: dict[str, float] = {}

    def count(event: Event, ctx: Any) -> None:
        day = day_of(event.at)
        if isinstance(event, ToolCall):
            began[event.id] = event.at
        elif isinstance(event, ToolReturn):
            if event.ran:
                took = event.at - began.pop(event.id, event.at)
                keep(day, DailyUsage(tools={event.name: ToolUsage(1, int(event.is_error), round(took, 3))}))
        elif isinstance(event, ProviderResponse):
            keep(day, DailyUsage(models={f"{event.provider}:{event.model}": ModelUsage(1, event.usage)}))
            # Told at once, so that what others have spent meanwhile is known here.
            spent = put().cost_usd
            if limit is not None and spent >= limit and not ctx.turn_state.get(NAME):
                ctx.turn_state[NAME] = True
                ctx.steer(WARNED.format(spent=spent, limit=limit))
        elif isinstance(event, (TurnEnd, Failed)):
            put()

    def keep(day: str, more: DailyUsage) -> None:
        sums[day] = add_usage(sums.get(day, DailyUsage()), more)

    def put() -> DailyUsage:
        last = DailyUsage()
        for day in sorted(sums):
            last = ledger.add(day, sums[day])
            del sums[day]
        return last

    stages = ("after_provider_response", "tool_call", "tool_result", "turn_end", "error")
    return (make_hook(count, *stages, name=NAME, priority=200, kind="observe"),)
