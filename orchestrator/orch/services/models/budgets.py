"""What is put aside for responses of models and calls of tools, where a budget holds; and the budget of all agents."""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING

from orch_protocol.core.budget import BudgetShown, ChangeBudget, Reserve, Reserved, Settle, Settled, Spent
from orch_protocol.core.errors import ProtocolError, StoreError
from orch_protocol.services.requests import Empty

from ...supervisor.waiters import SETTLED
from ...tree.journal import events

if TYPE_CHECKING:
    from ...supervisor.supervisor import Supervisor

__all__ = ["budget", "reserve", "settle", "spent"]


async def reserve(root: Supervisor, caller: str | None, params: Reserve) -> Reserved:
    """Put something aside, waiting while others hold what is needed. Raises BudgetExceededError, StoreError."""
    agent = _agent(caller)
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


async def settle(root: Supervisor, caller: str | None, params: Settle) -> Settled:
    """Take something as used, and tell of budgets that come to an end."""
    agent = _agent(caller)
    if (entry := root.budgets.settle(agent, params.id, params.amounts)) is not None:
        with contextlib.suppress(StoreError):  # then it counts once more, if the root dies in that very turn
            root.note(entry)
    root.waiters.tell(SETTLED)
    return Settled(root.budgets.low(agent))


async def spent(root: Supervisor, caller: str | None, params: Spent) -> Empty:
    """Put on record what the agent used beside its turns."""
    root.handle(events.RecordUsage(_agent(caller), params.usage))
    return Empty()


async def budget(root: Supervisor, _: str | None, params: ChangeBudget) -> BudgetShown:
    """Set limits for all agents together, from now on, and return what they are."""
    if (entry := root.budgets.change(params.change)) is not None:
        root.note(entry)
        root.budgets_changed()
    return BudgetShown(root.budgets.of_all, root.budgets.configured, root.budgets.spent(None))


def _agent(caller: str | None) -> str:
    if caller is None:
        raise ProtocolError("something is put aside for agents alone: a budget is set with spawn, resume or budget")
    return caller
