"""Reserves budget at the root before each model request and tool call."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, Final

from msgspec import Struct

from orch_protocol.core.messages import Usage
from orch_protocol.policy.budget import BudgetAmounts, amounts_of
from orch_protocol.services.policy.budgets import (
    RECORD_USAGE,
    RESERVE_BUDGET,
    SETTLE_BUDGET,
    BudgetReservationResult,
    ReserveBudget,
    SettleBudget,
    SideSpending,
)

from ...backends.base import AssistantTurn, Backend, CostEstimate, lost_by
from ...backends.lost_usage import LostUsage
from ..api.base import ToolContext

__all__ = ["FREE", "BudgetClient", "BudgetReservation"]

MIN_CALL_SECONDS = 1.0
"""Minimum number of seconds for a tool call. With less budget, the tool is not called."""
USUAL_CALL_SECONDS = 10.0
"""Number of seconds that is sufficient for most tool calls."""


class BudgetReservation(Struct, frozen=True):
    """A reservation of budget. `why` explains a reservation that is smaller than requested.

    When the actual usage is recorded, call `settle` once with this usage. `seconds` is the time limit for a tool, or
    None.
    """

    settle: Callable[[Usage], None]
    why: str = ""
    seconds: float | None = None


FREE: Final = BudgetReservation(lambda _: None)


class BudgetClient:
    """Reserves and settles the agent's budget at the root.

    `budgeted` contains the kinds of amounts that are limited in this turn.
    """

    def __init__(self, context: ToolContext) -> None:
        self.budgeted: frozenset[str] = frozenset()
        self.low = ""
        """The root's last notice about budgets that are nearly used up."""
        self.losses = LostUsage()
        self._call_root = context.call_root
        self._settling: set[asyncio.Task[None]] = set()

    async def reserve(self, backend: Backend, *, outside_turn: bool = False) -> BudgetReservation:
        """Reserve budget for the next response of `backend`, and set the backend's limit to the reserved amount.

        `outside_turn` is True for a request outside a turn. Wait while other reservations hold the required budget.
        Raise BudgetExceededError if the remaining budget is too small. Raise ConfigError if the price is unknown.
        """
        backend.reserved = None
        if not self.budgeted:
            return FREE
        estimate = backend.estimate_cost(priced="usd" in self.budgeted).with_calls(model_calls=1)
        reserved = await self._reserve(estimate, outside_turn=outside_turn)
        if reserved is None:
            return FREE
        backend.reserved = reserved.amounts
        return BudgetReservation(lambda usage: self._settle(reserved.id, usage), reserved.limit_reason)

    async def response(self, backend: Backend, reservation: BudgetReservation) -> AssistantTurn:
        """Return the next response of `backend`. The caller settles `reservation` after recording the response.

        If the request fails, this method settles `reservation` with the lost usage.
        """
        try:
            return await backend.assistant_turn()
        except BaseException:
            lost_usage = lost_by(backend)
            self.losses.add(lost_usage)
            reservation.settle(lost_usage)
            raise

    def spend(self, usage: Usage, reservation: BudgetReservation) -> None:
        """In the background, record the usage of a response outside turns, and settle `reservation`."""
        self._run_in_background(self._spend(usage, reservation))

    async def reserve_call(self, seconds: float | None) -> BudgetReservation:
        """Reserve budget for a tool call with a timeout of `seconds`.

        None means that the time of the call is not counted.

        Wait while other reservations hold the required budget. Raise BudgetExceededError if the remaining budget is too
        small.
        """
        if not self.budgeted & {"tool_calls", "tool_seconds"}:
            return FREE
        minimum, expected, limit = (
            BudgetAmounts(tool_seconds=min(preferred, seconds)) if seconds is not None else BudgetAmounts()
            for preferred in (MIN_CALL_SECONDS, USUAL_CALL_SECONDS, seconds or 0.0)
        )
        reserved = await self._reserve(CostEstimate(minimum, expected, limit).with_calls(tool_calls=1))
        if reserved is None:
            return FREE
        time_limit = reserved.amounts.tool_seconds if seconds is not None and "tool_seconds" in self.budgeted else None
        return BudgetReservation(lambda usage: self._settle(reserved.id, usage), reserved.limit_reason, time_limit)

    async def settled(self) -> None:
        """Wait until the root has processed all settlements and updated `low`."""
        while self._settling:
            await asyncio.wait(list(self._settling))

    async def _reserve(self, estimate: CostEstimate, *, outside_turn: bool = False) -> BudgetReservationResult | None:
        """Return the reservation, or None if the turn limits no kind of amount in `estimate`."""
        minimum, expected, limit = (
            each.only(self.budgeted) for each in (estimate.minimum, estimate.expected, estimate.maximum)
        )
        if limit == BudgetAmounts():
            return None
        await self.settled()
        return await self._call_root(RESERVE_BUDGET, ReserveBudget(minimum, expected, limit, outside_turn))

    def _settle(self, id: str, usage: Usage) -> None:
        # The task is not awaited, because the root processes later calls after this call.
        self._run_in_background(self._send_settlement(SettleBudget(id, amounts_of(usage).only(self.budgeted))))

    def _run_in_background(self, coroutine: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(coroutine)
        self._settling.add(task)
        task.add_done_callback(self._settling.discard)

    async def _spend(self, usage: Usage, reservation: BudgetReservation) -> None:
        try:
            await self._call_root(RECORD_USAGE, SideSpending(usage))
        except Exception as error:
            print(f"usage not recorded: {error}", flush=True)
            self.losses.add(usage)
        reservation.settle(usage)

    async def _send_settlement(self, settle: SettleBudget) -> None:
        try:
            settled = await self._call_root(SETTLE_BUDGET, settle)
            self.low = settled.warning
        except Exception as error:
            # The reservation lasts until the end of the turn. After that, the recorded usage counts.
            print(f"budget reservation not settled: {error}", flush=True)
