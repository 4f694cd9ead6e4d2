"""When the time at work that a budget allows is over: turns under way are told to end."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial

from ...policy.budgets import BudgetLedger
from ...tree.agents.state import TreeState

__all__ = ["TimeBudgets"]

SOON = 0.001
"""Seconds that are added to a time that is to be over: rounding must not leave a little of it."""


class TimeBudgets:
    """Ends turns of the agents in `nodes` with `end(id, query_id, short)`; `later(seconds, act)` calls again."""

    def __init__(
        self,
        nodes: TreeState,
        budgets: BudgetLedger,
        end: Callable[[str, str, str], object],
        later: Callable[[float, Callable[[], None]], object],
    ) -> None:
        self._nodes = nodes
        self._budgets = budgets
        self._end = end
        self._later = later
        self._looks = 0
        self._ended: set[str] = set()

    def look(self) -> None:
        """End the turns whose time is over, and see to it that this is looked at when the next one's is."""
        soonest = math.inf
        pending = {node.pending.query_id: node for node in self._nodes.pending.values() if node.pending is not None}
        self._ended &= pending.keys()
        for query_id, node in pending.items():
            left = self._budgets.time_left(node.spec.id)
            if left is None or query_id in self._ended or node.status != "busy":
                continue
            if left[0] > 0:
                soonest = min(soonest, left[0])
            else:
                self._ended.add(query_id)
                self._end(node.spec.id, query_id, left[1])
        self._looks += 1
        if soonest < math.inf:
            self._later(soonest + SOON, partial(self._look_again, self._looks))

    def _look_again(self, looks: int) -> None:
        if looks == self._looks:  # else somebody has looked since, and said when to do so next
            self.look()
