"""`o.budget`: what all agents of a run together may use."""

from __future__ import annotations

from orch_protocol.policy.budget import Budget, BudgetShown, ChangeBudget
from orch_protocol.services.budgets import CHANGE_BUDGET

from ...policy.budget_rules import budget_change
from .service_call import ServiceCall

__all__ = ["AsyncRunBudget"]


class AsyncRunBudget:
    """The budget of a run."""

    def __init__(self, call: ServiceCall) -> None:
        self._call = call

    async def show(self) -> BudgetShown:
        """Return the run's limits and what its agents have used."""
        return await self.set()

    async def set(self, *, max_cost: float | None = None, budget: Budget | None = None) -> BudgetShown:
        """Set limits for all agents together; `math.inf` removes a limit. Returns limits and usage.

        `max_cost` is in USD. The limits stay in force when the run is opened again, until the configuration changes.
        """
        return await self._call(CHANGE_BUDGET, ChangeBudget(budget_change(max_cost, budget)))
