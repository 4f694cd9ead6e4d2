"""Selects the model for each turn: the model with the best results on similar questions at a low cost.

The ranking uses measurements: the normal end of turns, the success of their calls, and their cost. A model without
measurements gets a bonus, so that the hook tries the model.
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any, Final

from msgspec import Struct

from orch_protocol.core.errors import ConfigError
from orch_protocol.core.messages import COMPLETE_STOPS
from orch_protocol.hooks.events import BeforeTurn, Event, Failed, ToolReturn, TurnEnd
from orch_protocol.hooks.options import HookOptions
from orch_protocol.hooks.patches import Patch

from ..hook import Hook, make_hook
from ..outcome_ranking import OutcomeLog, RecordedOutcome, question_terms, rank

__all__ = ["make"]

NAME: Final = "model_router"
FILE: Final = "models.jsonl"
NEUTRAL_STOPS: Final = frozenset({"cancelled", "aborted", "budget", "timeout"})
"""Stop reasons that do not depend on the quality of the model."""
MODEL_ERRORS: Final = frozenset(
    {
        "BackendError",
        "BackendTimeoutError",
        "BadReplyError",
        "ContextOverflowError",
        "RateLimitError",
        "TruncatedReplyError",
    }
)
"""Errors that count against the model."""


class _RoutedTurn(Struct):
    """Measurements of the current turn."""

    model: str = ""
    terms: tuple[str, ...] = ()
    calls: int = 0
    errors: int = 0


def make(options: HookOptions) -> tuple[Hook, ...]:
    """Return two hooks, configured by `options`: one selects the model, the other measures the turn."""
    settings = options.model_router
    if len(settings.models) < 2:
        raise ConfigError('hooks.model_router.models must name at least two models, as ["provider:name", ...]')
    outcome_log = OutcomeLog(Path(options.evidence) / FILE)
    turn = _RoutedTurn()

    def choose(event: BeforeTurn, _ctx: Any) -> Patch:
        nonlocal turn
        terms = question_terms(event.prompt)
        best = rank(settings.models, outcome_log.outcomes(), terms, time.time(), cost_weight=settings.thrift)[0]
        turn = _RoutedTurn(best.choice, terms)
        return event.patch(model=best.choice)

    def measure(event: Event, _ctx: Any) -> None:
        if isinstance(event, ToolReturn):
            turn.calls += event.ran
            turn.errors += event.ran and event.is_error
        elif isinstance(event, TurnEnd):
            if event.stop_reason not in NEUTRAL_STOPS:
                succeeded = event.stop_reason in COMPLETE_STOPS and 2 * turn.errors <= turn.calls
                record(event.at, succeeded, event.usage.cost_usd)
        elif isinstance(event, Failed) and event.kind in MODEL_ERRORS:
            record(event.at, False, 0.0)

    def record(at: float, succeeded: bool, cost: float) -> None:
        if turn.model:
            tried = (turn.model,)
            outcome_log.add(
                RecordedOutcome(at, turn.terms, tried, tried if succeeded else (), {turn.model: cost} if cost else {})
            )
            turn.model = ""

    return (
        make_hook(choose, "before_turn", name=NAME, priority=5, kind="transform", does=["model"]),
        make_hook(measure, "tool_result", "turn_end", "error", name=f"{NAME}.measure", priority=5, kind="observe"),
    )
