"""Adds up the usage of models and tools per day, over all agents of a user. `orch costs` shows the sums.

When the cost of a day exceeds `warn_usd`, each agent gets one warning per turn. The hook stops nothing. Use a budget to
stop agents.
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
WARNING: Final = (
    "All agents together have cost ${spent:.2f} today, more than the limit of ${limit:.2f}. Finish now: state what you "
    "have and what is left to do."
)


def make(options: HookOptions) -> tuple[Hook, ...]:
    """Return the hook, configured by `options`."""
    limit = options.cost_tracker.warn_usd
    usage_log = UsageLog(Path(options.evidence) / FILE)
    sums: dict[str, DailyUsage] = {}
    start_times: dict[str, float] = {}

    def count(event: Event, ctx: Any) -> None:
        day = day_of(event.at)
        if isinstance(event, ToolCall):
            start_times[event.id] = event.at
        elif isinstance(event, ToolReturn):
            if event.ran:
                seconds = event.at - start_times.pop(event.id, event.at)
                add_to_day(day, DailyUsage(tools={event.name: ToolUsage(1, int(event.is_error), round(seconds, 3))}))
        elif isinstance(event, ProviderResponse):
            add_to_day(day, DailyUsage(models={f"{event.provider}:{event.model}": ModelUsage(1, event.usage)}))
            # Write immediately, because the returned sum includes the costs of other agents.
            spent = write_sums().cost_usd
            if limit is not None and spent >= limit and not ctx.turn_state.get(NAME):
                ctx.turn_state[NAME] = True
                ctx.steer(WARNING.format(spent=spent, limit=limit))
        elif isinstance(event, (TurnEnd, Failed)):
            write_sums()

    def add_to_day(day: str, usage: DailyUsage) -> None:
        sums[day] = add_usage(sums.get(day, DailyUsage()), usage)

    def write_sums() -> DailyUsage:
        total = DailyUsage()
        for day in sorted(sums):
            total = usage_log.add(day, sums[day])
            del sums[day]
        return total

    stages = ("after_provider_response", "tool_call", "tool_result", "turn_end", "error")
    return (make_hook(count, *stages, name=NAME, priority=200, kind="observe"),)
