"""Services that reserve budget for model requests and tool calls, and show or change the budget of all agents."""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING

from orch_protocol.core.errors import StoreError
from orch_protocol.services.policy.budgets import (
    CHANGE_BUDGET,
    RECORD_USAGE,
    RESERVE_BUDGET,
    SETTLE_BUDGET,
    BudgetReservationResult,
    BudgetSettled,
    BudgetShown,
    ChangeBudget,
    ReserveBudget,
    SettleBudget,
    SideSpending,
)
from orch_protocol.services.service import Empty

from ...policy.caller import Caller
from ...tree.interface import events
from ...tree.interface.topics import BudgetTopic
from ..dispatch.handlers import handles

if TYPE_CHECKING:
    from ...supervisor.supervisor import Supervisor

__all__ = ["budget", "record_usage", "reserve", "settle"]


@handles(RESERVE_BUDGET)
async def reserve(root: Supervisor, caller: Caller, params: ReserveBudget) -> BudgetReservationResult:
    """Reserve budget.

    If other reservations use up the budget, wait until they end. Raises BudgetExceededError, StoreError.
    """
    agent = caller.require_agent(root.tree.agents).spec.id
    while (reserved := root.budgets.reserve(agent, params)) is None:
        # Budget is released when a reservation is settled, when a turn or process ends, and when a limit is raised.
        watchers = [root.waiters.watch(topic) for topic in (BudgetTopic(), *root.budgets.release_topics())]
        try:
            await asyncio.wait(watchers, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for watcher in watchers:
                watcher.cancel()
    try:
        if (entry := root.budgets.reservation_entry(agent, reserved.id)) is not None:
            root.record(entry)
    except StoreError:
        root.budgets.cancel_reservation(agent, reserved.id)
        raise
    return reserved


@handles(SETTLE_BUDGET)
async def settle(root: Supervisor, caller: Caller, params: SettleBudget) -> BudgetSettled:
    """Settle a reservation, and return the budgets that are nearly used up."""
    agent = caller.require_agent(root.tree.agents).spec.id
    if (entry := root.budgets.settle(agent, params.id, params.amounts)) is not None:
        with contextlib.suppress(StoreError):  # if this fails and the root dies in that turn, the amount counts twice
            root.record(entry)
    root.waiters.notify(BudgetTopic())
    return BudgetSettled(root.budgets.low_budget_warning(agent))


@handles(RECORD_USAGE)
async def record_usage(root: Supervisor, caller: Caller, params: SideSpending) -> Empty:
    """Record usage of the agent outside its turns."""
    root.handle(events.RecordUsage(caller.require_agent(root.tree.agents).spec.id, params.usage))
    return Empty()


@handles(CHANGE_BUDGET)
async def budget(root: Supervisor, _: Caller, params: ChangeBudget) -> BudgetShown:
    """Change the limits on the total usage of all agents, and return the budget."""
    if (entry := root.budgets.change(params.change)) is not None:
        root.record(entry)
        root.budgets_changed()
    return BudgetShown(root.budgets.root_budget, root.budgets.configured, root.budgets.spent(None))
