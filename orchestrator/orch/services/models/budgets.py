"""What is put aside for responses of models and calls of tools, where a budget holds; and the budget of all agents."""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING

from orch_protocol.core.errors import StoreError
from orch_protocol.policy.budget import (
    BudgetReservationResult,
    BudgetSettled,
    BudgetShown,
    ChangeBudget,
    ReserveBudget,
    SettleBudget,
    SideSpending,
)
from orch_protocol.services.budgets import CHANGE_BUDGET, RECORD_USAGE, RESERVE_BUDGET, SETTLE_BUDGET
from orch_protocol.services.service import Empty

from ...policy.caller import Caller
from ...supervisor.timing.waiters import SETTLED
from ...tree.journal import events
from ..dispatch.handlers import handles

if TYPE_CHECKING:
    from ...supervisor.supervisor import Supervisor

__all__ = ["budget", "record_usage", "reserve", "settle"]


@handles(RESERVE_BUDGET)
async def reserve(root: Supervisor, caller: Caller, params: ReserveBudget) -> BudgetReservationResult:
    """Put something aside, waiting while others hold what is needed. Raises BudgetExceededError, StoreError."""
    agent = caller.require_agent(root.tree.agents).spec.id
    while (reserved := root.budgets.reserve(agent, params)) is None:
        # It comes back when somebody settles, when somebody's turn or process is over, and when a limit is raised.
        watchers = [root.waiters.watch(topic) for topic in (SETTLED, *root.budgets.holders())]
        try:
            await asyncio.wait(watchers, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for watcher in watchers:
                watcher.cancel()
    try:
        if (entry := root.budgets.put_aside(agent, reserved.id)) is not None:
            root.note(entry)
    except StoreError:
        root.budgets.take_back(agent, reserved.id)
        raise
    return reserved


@handles(SETTLE_BUDGET)
async def settle(root: Supervisor, caller: Caller, params: SettleBudget) -> BudgetSettled:
    """Take something as used, and tell of budgets that come to an end."""
    agent = caller.require_agent(root.tree.agents).spec.id
    if (entry := root.budgets.settle(agent, params.id, params.amounts)) is not None:
        with contextlib.suppress(StoreError):  # then it counts once more, if the root dies in that very turn
            root.note(entry)
    root.waiters.tell(SETTLED)
    return BudgetSettled(root.budgets.low(agent))


@handles(RECORD_USAGE)
async def record_usage(root: Supervisor, caller: Caller, params: SideSpending) -> Empty:
    """Put on record what the agent used beside its turns."""
    root.handle(events.RecordUsage(caller.require_agent(root.tree.agents).spec.id, params.usage))
    return Empty()


@handles(CHANGE_BUDGET)
async def budget(root: Supervisor, _: Caller, params: ChangeBudget) -> BudgetShown:
    """Set limits for all agents together, from now on, and return what they are."""
    if (entry := root.budgets.change(params.change)) is not None:
        root.note(entry)
        root.budgets_changed()
    return BudgetShown(root.budgets.of_all, root.budgets.configured, root.budgets.spent(None))
