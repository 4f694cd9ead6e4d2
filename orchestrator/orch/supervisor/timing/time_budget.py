"""Ends turns in progress when their budget of time is used up."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial

from ...policy.budgets import BudgetLedger
from ...tree.agents.state import TreeState

__all__ = ["TimeBudgets"]

ROUNDING_SECONDS = 0.001
"""Seconds that are added to a delay, so that rounding leaves no remaining time."""


class TimeBudgets:
    """Ends turns of the agents in `agents` when their time is used up.

    `end(id, query_id, short)` ends a turn, and `later(seconds, act)` sets a timer.
    """

    def __init__(
        self,
        agents: TreeState,
        budgets: BudgetLedger,
        end: Callable[[str, str, str], object],
        later: Callable[[float, Callable[[], None]], object],
    ) -> None:
        self._agents = agents
        self._budgets = budgets
        self._end = end
        self._later = later
        self._checks = 0
        self._ended: set[str] = set()

    def end_overdue_turns(self) -> None:
        """End each turn whose budget has no time left.

        Schedule the next check for the moment at which the next budget of time is used up.
        """
        soonest = math.inf
        pending = {
            agent.pending.query_id: agent for agent in self._agents.pending.values() if agent.pending is not None
        }
        self._ended &= pending.keys()
        for query_id, agent in pending.items():
            remaining = self._budgets.time_left(agent.spec.id)
            if remaining is None or query_id in self._ended or agent.status != "busy":
                continue
            if remaining[0] > 0:
                soonest = min(soonest, remaining[0])
            else:
                self._ended.add(query_id)
                self._end(agent.spec.id, query_id, remaining[1])
        self._checks += 1
        if soonest < math.inf:
            self._later(soonest + ROUNDING_SECONDS, partial(self._check_again, self._checks))

    def _check_again(self, check_number: int) -> None:
        if check_number == self._checks:  # otherwise a later check has scheduled the next check
            self.end_overdue_turns()
