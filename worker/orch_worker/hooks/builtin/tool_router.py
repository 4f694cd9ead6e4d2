"""Learns the tools that work well for similar questions. Informs the model when a similar question arrives.

A tool succeeded in a turn if most of its calls succeeded and the turn ended normally. If `narrow` is True, tools that
usually failed for similar questions are not available in the turn.
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any, Final

from msgspec import Struct

from orch_protocol.core.messages import COMPLETE_STOPS
from orch_protocol.hooks.events import BeforeTurn, Event, Failed, ProviderRequest, ToolCall, ToolReturn, TurnEnd
from orch_protocol.hooks.options import HookOptions
from orch_protocol.hooks.patches import Patch

from ..hook import Hook, make_hook
from ..outcome_ranking import OutcomeLog, RankedChoice, RecordedOutcome, question_terms, rank

__all__ = ["make"]

NAME: Final = "tool_router"
FILE: Final = "tools.jsonl"
COST_WEIGHT: Final = 0.1
LIKELY_CHANCE: Final = 0.5
HOPELESS_CHANCE: Final = 0.2
ADVICE: Final = "(What was measured here for questions like this one: {tools}.)"


class _ObservedTurn(Struct):
    """Measurements of the current turn."""

    terms: tuple[str, ...] = ()
    ranked: list[RankedChoice] = []
    began: dict[str, float] = {}
    seconds: dict[str, float] = {}
    calls: dict[str, int] = {}
    errors: dict[str, int] = {}


def make(options: HookOptions) -> tuple[Hook, ...]:
    """Return two hooks, configured by `options`: one informs the model about tools, the other measures the turn."""
    settings = options.tool_router
    outcome_log = OutcomeLog(Path(options.evidence) / FILE)
    turn = _ObservedTurn()

    def advise(event: BeforeTurn | ProviderRequest, _ctx: Any) -> Patch | None:
        nonlocal turn
        if isinstance(event, BeforeTurn):
            turn = _ObservedTurn(question_terms(event.prompt))
            ranked = rank(event.tools, outcome_log.outcomes(), turn.terms, time.time(), cost_weight=COST_WEIGHT)
            turn.ranked = [each for each in ranked if each.tried >= settings.least]
            hopeless = {each.choice for each in turn.ranked if each.chance <= HOPELESS_CHANCE}
            if not settings.narrow or not hopeless:
                return None
            return event.patch(tools=tuple(tool for tool in event.tools if tool not in hopeless))
        likely = [each for each in turn.ranked if each.chance >= LIKELY_CHANCE][: settings.most]
        if event.step or not likely:
            return None
        advice = ADVICE.format(tools="; ".join(map(_describe_tool, likely)))
        return event.patch(tail=f"{advice}\n\n{event.tail}" if event.tail else advice)

    def measure(event: Event, _ctx: Any) -> None:
        if isinstance(event, ToolCall):
            turn.began[event.id] = event.at
        elif isinstance(event, ToolReturn) and event.ran:
            turn.calls[event.name] = turn.calls.get(event.name, 0) + 1
            turn.errors[event.name] = turn.errors.get(event.name, 0) + event.is_error
            duration = event.at - turn.began.pop(event.id, event.at)
            turn.seconds[event.name] = turn.seconds.get(event.name, 0.0) + duration
        elif isinstance(event, (TurnEnd, Failed)) and turn.calls:
            ended_well = isinstance(event, TurnEnd) and event.stop_reason in COMPLETE_STOPS
            good = [name for name, calls in turn.calls.items() if ended_well and 2 * turn.errors[name] < calls]
            seconds = {name: round(duration, 3) for name, duration in turn.seconds.items()}
            outcome_log.add(RecordedOutcome(event.at, turn.terms, tuple(turn.calls), tuple(good), seconds))
            turn.calls = {}

    return (
        make_hook(advise, "before_turn", "before_provider_request", name=NAME, priority=6, kind="transform"),
        make_hook(
            measure, "tool_call", "tool_result", "turn_end", "error", name=f"{NAME}.measure", priority=6, kind="observe"
        ),
    )


def _describe_tool(each: RankedChoice) -> str:
    seconds = f", {each.cost:.1f} s a turn" if each.cost else ""
    return f"{each.choice} did well {each.chance:.0%} of the time{seconds}"
