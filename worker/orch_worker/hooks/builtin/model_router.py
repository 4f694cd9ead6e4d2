"""Lets, of several models, the one answer a turn that has done well at such questions, and costs little.

What counts is measured: whether turns came to their end, whether the calls in them went without errors, and what they
cost. A model that was never tried is given the benefit of the doubt.
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any, Final

from msgspec import Struct

from orch_protocol.core.errors import ConfigError
from orch_protocol.hooks.events import BeforeTurn, Event, Failed, ToolReturn, TurnEnd
from orch_protocol.hooks.options import HookOptions
from orch_protocol.hooks.patches import Patch

from ..hook import Hook, make_hook
from ..outcome_ranking import OutcomeLog, RecordedOutcome, question_terms, rank

__all__ = ["make"]

NAME: Final = "model_router"
FILE: Final = "models.jsonl"
WELL: Final = frozenset({"end_turn", "stop_sequence"})
NOT_ITS_DOING: Final = frozenset({"cancelled", "aborted", "budget", "timeout"})
"""Ends of turns that say nothing of the model."""
ITS_DOING: Final = frozenset(
    {
        "BackendError",
        "BackendTimeoutError",
        "BadReplyError",
        "ContextOverflowError",
        "RateLimitError",
        "TruncatedReplyError",
    }
)
"""Failures that speak against the model, or against asking it now."""


class _RoutedTurn(Struct):
    """What is known of a turn that is under way."""

    model: str = ""
    terms: tuple[str, ...] = ()
    calls: int = 0
    errors: int = 0


def make(options: HookOptions) -> tuple[Hook, ...]:
    """Return the hooks, as `options` have it: one that chooses, one that measures."""
    settings = options.model_router
    if len(settings.models) < 2:
        raise ConfigError('hooks.model_router.models is to name two models or more, as ["provider:name", ...]')
    evidence = OutcomeLog(Path(options.evidence) / FILE)
    turn = _RoutedTurn()

    def choose(event: BeforeTurn, _ctx: Any) -> Patch:
        nonlocal turn
        terms = question_terms(event.prompt)
        best = rank(settings.models, evidence.outcomes(), terms, time.time(), thrift=settings.thrift)[0]
        turn = _RoutedTurn(best.choice, terms)
        return event.patch(model=best.choice)

    def measure(event: Event, _ctx: Any) -> None:
        if isinstance(event, ToolReturn):
            turn.calls += event.ran
            turn.errors += event.ran and event.is_error
        elif isinstance(event, TurnEnd):
            if event.stop_reason not in NOT_ITS_DOING:
                well = event.stop_reason in WELL and 2 * turn.errors <= turn.calls
                keep(event.at, well, event.usage.cost_usd)
        elif isinstance(event, Failed) and event.kind in ITS_DOING:
            keep(event.at, False, 0.0)

    def keep(at: float, well: bool, cost: float) -> None:
        if turn.model:
            tried = (turn.model,)
            evidence.add(
                RecordedOutcome(at, turn.terms, tried, tried if well else (), {turn.model: cost} if cost else {})
            )
            turn.model = ""

    return (
        make_hook(choose, "before_turn", name=NAME, priority=5, kind="transform", does=["model"]),
        make_hook(measure, "tool_result", "turn_end", "error", name=f"{NAME}.measure", priority=5, kind="observe"),
    )
