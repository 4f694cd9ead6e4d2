"""The cost of models that summarize archives is counted for each outcome."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from orch_protocol.agent.spec import BackendSpec
from orch_protocol.core.errors import QueryTimeoutError, StoreError
from orch_protocol.core.messages import Usage
from orch_protocol.services.archives.archiving import SummarizeArchive, SummaryOrder, SummaryRequest, SummaryStep
from orch_protocol.services.policy.budgets import (
    BudgetReservationResult,
    BudgetSettled,
    ReserveBudget,
    SettleBudget,
    SideSpending,
)
from orch_protocol.services.service import AnyService, Empty
from orch_worker.context.summarizer import Summarizer
from orch_worker.tools.api.base import ToolContext
from orch_worker.tools.dispatch.budget_client import BudgetClient
from paid_backend import Paid, price


class Root:
    """A root that returns one summary request and then does not answer. With `full`, it cannot record usage."""

    def __init__(self, *, full: bool = False) -> None:
        self.full = full
        self.asked: list[Any] = []

    async def __call__(self, called: AnyService, params: Any, seconds: float | None = None) -> Any:
        service = called.name
        self.asked.append(params)
        if isinstance(params, SummarizeArchive):
            if params.answer is not None:
                raise QueryTimeoutError(f"the root did not answer {service!r} within {seconds:g} s")
            return SummaryStep(SummaryRequest("Be brief.", "What was it?"))
        if isinstance(params, ReserveBudget):
            return BudgetReservationResult("1", params.maximum)
        if isinstance(params, SettleBudget):
            return BudgetSettled()
        if self.full:
            raise StoreError("cannot write: disk full")
        return Empty()


@pytest.mark.parametrize("full", [False, True])
async def test_paid_summary_counts_although_the_settlement_failed(full: bool) -> None:
    """The usage is recorded at once or with the next turn, and the reservation is settled."""
    root = Root(full=full)
    purse = BudgetClient(ToolContext(Path("/"), call_root=root))
    purse.budgeted = frozenset({"usd"})
    made = Summarizer(BackendSpec("anthropic", "m"), lambda _: Paid([price(0.5)]), root, purse, tools=(), seconds=60.0)
    with pytest.raises(QueryTimeoutError):
        await made.summary(SummaryOrder("h", with_conversation=False), ())
    await purse.settled()
    [spent] = [each.usage for each in root.asked if isinstance(each, SideSpending)]
    [settled] = [each.amounts for each in root.asked if isinstance(each, SettleBudget)]
    assert spent.cost_usd == settled.usd == 0.5
    assert purse.losses.total == (spent if full else Usage())
