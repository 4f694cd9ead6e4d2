"""`o.budget` is the budget that all agents of a run share."""

from __future__ import annotations

from orch_protocol.policy.budget import Budget
from orch_protocol.services.policy.budgets import CHANGE_BUDGET, BudgetShown, ChangeBudget

from ...policy.budget_rules import budget_change
from .service_call import ServiceCall

__all__ = ["AsyncRunBudget"]


class AsyncRunBudget:
    """The budget of a run."""

    def __init__(self, call: ServiceCall) -> None:
        self._call = call

    async def show(self) -> BudgetShown:
        """Return the limits of the run and the usage of its agents."""
        return await self.set()

    async def set(self, *, max_cost: float | None = None, budget: Budget | None = None) -> BudgetShown:
        """Set limits on the total usage of all agents. `math.inf` removes a limit. Returns limits and usage.

        `max_cost` is in USD. The limits stay in force when a program opens the run again, until the configuration
        changes.
        """
        return await self._call(CHANGE_BUDGET, ChangeBudget(budget_change(max_cost, budget)))
