"""Money that is put aside for responses of models, where a budget holds."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final

from orch_protocol.errors import ProtocolError
from orch_protocol.services import Empty, Reserve, Reserved, Settle

if TYPE_CHECKING:
    from ..supervisor import Supervisor

__all__ = ["reserve", "settle"]

SETTLED: Final = "settled"


async def reserve(root: Supervisor, caller: str | None, params: Reserve) -> Reserved:
    """Put money aside, waiting while others hold what is needed. Raises BudgetExceededError."""
    agent = _agent(caller)
    while (reserved := root.budgets.reserve(agent, params)) is None:
        # Money comes back when somebody settles, and when somebody's turn or process is over.
        watchers = [root.waiters.watch(topic) for topic in (SETTLED, *root.budgets.holders())]
        try:
            await asyncio.wait(watchers, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for watcher in watchers:
                watcher.cancel()
    return reserved


async def settle(root: Supervisor, caller: str | None, params: Settle) -> Empty:
    """Take a response as paid."""
    root.budgets.settle(_agent(caller), params.id, params.usd)
    root.waiters.tell(SETTLED)
    return Empty()


def _agent(caller: str | None) -> str:
    if caller is None:
        raise ProtocolError("money is put aside for agents alone: a budget is set with spawn or resume, max_cost_usd")
    return caller
