"""Learns which tools do well for which questions, and tells the agent so when such a question comes again.

What counts is measured: a call that ran without an error in a turn that came to its end did well, and it took the
seconds that it took. With `narrow`, tools that kept failing for such questions cannot be used in the turn.
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any, Final

from msgspec import Struct

from orch_protocol.hooks.events import BeforeTurn, Event, Failed, ProviderRequest, ToolCall, ToolReturn, TurnEnd
from orch_protocol.hooks.options import HookOptions
from orch_protocol.hooks.patches import Patch

from ..hook import Hook, make_hook
from ..outcome_ranking import OutcomeLog, RankedChoice, RecordedOutcome, question_terms, rank

__all__ = ["make"]

NAME: Final = "tool_router"
FILE: Final = "tools.jsonl"
ENDED_WELL: Final = frozenset({"end_turn", "stop_sequence"})
THRIFT: Final = 0.1
LIKELY: Final = 0.5
HOPELESS: Final = 0.2
SAID: Final = "(What was measured here for questions like this one: {tools}.)"


class _ObservedTurn(Struct):
    """What is known of a turn that is under way."""

    terms: tuple[str, ...] = ()
    ranked: list[RankedChoice] = []
    began: dict[str, float] = {}
    seconds: dict[str, float] = {}
    calls: dict[str, int] = {}
    errors: dict[str, int] = {}


def make(options: HookOptions) -> tuple[Hook, ...]:
    """Return the hooks, as `options` have it: one that tells, one that measures."""
    settings = options.tool_router
    evidence = OutcomeLog(Path(options.evidence) / FILE)
    turn = _ObservedTurn()

    def tell(event: BeforeTurn | ProviderRequest, _ctx: Any) -> Patch | None:
        nonlocal turn
        if isinstance(event, BeforeTurn):
            turn = _ObservedTurn(question_terms(event.prompt))
            found = rank(event.tools, evidence.outcomes(), turn.terms, time.time(), thrift=THRIFT)
            turn.ranked = [each for each in found if each.tried >= settings.least]
            hopeless = {each.choice for each in turn.ranked if each.chance <= HOPELESS}
            if not settings.narrow or not hopeless:
                return None
            return event.patch(tools=tuple(tool for tool in event.tools if tool not in hopeless))
        likely = [each for each in turn.ranked if each.chance >= LIKELY][: settings.most]
        if event.step or not likely:
            return None
        said = SAID.format(tools="; ".join(map(_said, likely)))
        return event.patch(tail=f"{said}\n\n{event.tail}" if event.tail else said)

    def measure(event: Event, _ctx: Any) -> None:
        if isinstance(event, ToolCall):
            turn.began[event.id] = event.at
        elif isinstance(event, ToolReturn) and event.ran:
            turn.calls[event.name] = turn.calls.get(event.name, 0) + 1
            turn.errors[event.name] = turn.errors.get(event.name, 0) + event.is_error
            took = event.at - turn.began.pop(event.id, event.at)
            turn.seconds[event.name] = turn.seconds.get(event.name, 0.0) + took
        elif isinstance(event, (TurnEnd, Failed)) and turn.calls:
            ended_well = isinstance(event, TurnEnd) and event.stop_reason in ENDED_WELL
            good = [name for name, calls in turn.calls.items() if ended_well and 2 * turn.errors[name] < calls]
            seconds = {name: round(took, 3) for name, took in turn.seconds.items()}
            evidence.add(RecordedOutcome(event.at, turn.terms, tuple(turn.calls), tuple(good), seconds))
            turn.calls = {}

    return (
        make_hook(tell, "before_turn", "before_provider_request", name=NAME, priority=6, kind="transform"),
        make_hook(
            measure, "tool_call", "tool_result", "turn_end", "error", name=f"{NAME}.measure", priority=6, kind="observe"
        ),
    )


def _said(each: RankedChoice) -> str:
    seconds = f", {each.cost:.1f} s a turn" if each.cost else ""
    return f"{each.choice} did well {each.chance:.0%} of the time{seconds}"
