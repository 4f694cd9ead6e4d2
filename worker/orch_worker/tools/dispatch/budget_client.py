"""What an agent may use where a budget holds: before a model or a tool is asked, the root puts that aside."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, Final

from msgspec import Struct

from orch_protocol.core.messages import Usage
from orch_protocol.policy.budget import (
    BudgetAmounts,
    BudgetReservationResult,
    ReserveBudget,
    SettleBudget,
    SideSpending,
    amounts_of,
)
from orch_protocol.services.budgets import RECORD_USAGE, RESERVE_BUDGET, SETTLE_BUDGET

from ...backends.base import NOTHING, AssistantTurn, Backend, CostEstimate, lost_by
from ..api.base import ToolContext

__all__ = ["FREE", "BudgetClient", "BudgetReservation"]

SHORTEST_CALL = 1.0
"""Seconds that a tool gets at least, or it is not called."""
MOST_CALLS = 10.0
"""Most calls of tools take no longer than so many seconds."""


class BudgetReservation(Struct, frozen=True):
    """What was put aside. `why` tells, if it is less than was asked for, of what it is a part.

    `settle` is to be called once, with what was used, when that is on record. `seconds` is how long a tool may run,
    None when nobody counts that.
    """

    settle: Callable[[Usage], None]
    why: str = ""
    seconds: float | None = None


FREE: Final = BudgetReservation(lambda _: None)


class BudgetClient:
    """What the agent may use, kept by its root. `budgeted` says which kinds of amounts are counted in this turn."""

    def __init__(self, context: ToolContext) -> None:
        self.budgeted: frozenset[str] = frozenset()
        self.low = ""
        """What the root told last of budgets that are nearly used up."""
        self._lost = Usage()
        self._call_root = context.call_root
        self._settling: set[asyncio.Task[None]] = set()

    def lose(self, backend: Backend) -> Usage:
        """Return what `backend` used for requests that failed or were given up; a turn has yet to take that over."""
        used = lost_by(backend)
        self.owe(used)
        return used

    def owe(self, used: Usage) -> None:
        """Let a turn take over what was `used` for nothing that is on record."""
        if used != NOTHING:
            self._lost += used

    def lost(self) -> Usage:
        """Return what was lost since the last turn took it over; whoever calls this does so."""
        lost, self._lost = self._lost, NOTHING
        return lost

    async def reserve(self, backend: Backend, *, beside: bool = False) -> BudgetReservation:
        """Put aside what the next response of `backend` may take, which it then holds to; `beside`: not for a turn.

        Waits while others hold what it needs. Raises BudgetExceededError when there is too little, ConfigError when
        nobody knows what the response may cost.
        """
        backend.most = None
        if not self.budgeted:
            return FREE
        quote = backend.quote(priced="usd" in self.budgeted).with_calls(model_calls=1)
        reserved = await self._reserve(quote, beside=beside)
        if reserved is None:
            return FREE
        backend.most = reserved.amounts
        return BudgetReservation(lambda usage: self._settle(reserved.id, usage), reserved.why)

    async def response(self, backend: Backend, hold: BudgetReservation) -> AssistantTurn:
        """Return the next response of `backend`, for which `hold` was put aside and is settled once that is on record.

        When there is none, `hold` is settled with what was lost.
        """
        try:
            return await backend.assistant_turn()
        except BaseException:
            hold.settle(self.lose(backend))
            raise

    def spend(self, usage: Usage, hold: BudgetReservation) -> None:
        """Let what a response took that is no turn's be on record, and then settle `hold`. Nobody waits for that."""
        self._begin(self._spend(usage, hold))

    async def reserve_call(self, seconds: float | None) -> BudgetReservation:
        """Put aside what a call of a tool may take that has so many seconds, None: whose time is not counted.

        Waits while others hold what it needs. Raises BudgetExceededError when there is too little.
        """
        if not self.budgeted & {"tool_calls", "tool_seconds"}:
            return FREE
        least, enough, most = (
            BudgetAmounts(tool_seconds=min(bound, seconds)) if seconds is not None else BudgetAmounts()
            for bound in (SHORTEST_CALL, MOST_CALLS, seconds or 0.0)
        )
        reserved = await self._reserve(CostEstimate(least, enough, most).with_calls(tool_calls=1))
        if reserved is None:
            return FREE
        within = reserved.amounts.tool_seconds if seconds is not None and "tool_seconds" in self.budgeted else None
        return BudgetReservation(lambda usage: self._settle(reserved.id, usage), reserved.why, within)

    async def settled(self) -> None:
        """Wait until the root has heard of all that was settled, and has told what is `low`."""
        while self._settling:
            await asyncio.wait(list(self._settling))

    async def _reserve(self, quote: CostEstimate, *, beside: bool = False) -> BudgetReservationResult | None:
        """Return what was put aside, None when nobody counts any of it."""
        least, enough, most = (each.only(self.budgeted) for each in (quote.least, quote.enough, quote.most))
        if most == BudgetAmounts():
            return None
        await self.settled()
        return await self._call_root(RESERVE_BUDGET, ReserveBudget(least, enough, most, beside))

    def _settle(self, id: str, usage: Usage) -> None:
        # Nobody waits for the answer but the next response: what tools ask of the root is asked behind it anyway.
        self._begin(self._tell(SettleBudget(id, amounts_of(usage).only(self.budgeted))))

    def _begin(self, telling: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(telling)
        self._settling.add(task)
        task.add_done_callback(self._settling.discard)

    async def _spend(self, usage: Usage, hold: BudgetReservation) -> None:
        try:
            await self._call_root(RECORD_USAGE, SideSpending(usage))
        except Exception as error:
            print(f"not on record yet: {error}", flush=True)
            self.owe(usage)
        hold.settle(usage)

    async def _tell(self, settle: SettleBudget) -> None:
        try:
            settled = await self._call_root(SETTLE_BUDGET, settle)
            self.low = settled.low
        except Exception as error:
            # What was put aside stays so until the turn ends, and then counts by what is on record.
            print(f"not settled: {error}", flush=True)
