"""Services for budgets: reserve, settle and record usage, and change limits."""

from __future__ import annotations

from typing import Final

from msgspec import Struct

from ...core.messages import Usage
from ...policy.budget import Budget, BudgetAmounts, BudgetChange
from ..service import ARCHIVING_AGENTS, EVERY_AGENT, USERS_ONLY, AgentFields, Empty, Service

__all__ = [
    "CHANGE_BUDGET",
    "RECORD_USAGE",
    "RESERVE_BUDGET",
    "SETTLE_BUDGET",
    "BudgetReservationResult",
    "BudgetSettled",
    "BudgetShown",
    "ChangeBudget",
    "ReserveBudget",
    "SettleBudget",
    "SideSpending",
]


class ReserveBudget(Struct, frozen=True, forbid_unknown_fields=True):
    """Reserve a part of the budget: at least `minimum`, at most `maximum`.

    `expected` is the amount that is usually sufficient.

    If `outside_turn` is True, the reservation is for work outside a turn, whose usage is reported separately.
    """

    minimum: BudgetAmounts
    expected: BudgetAmounts
    maximum: BudgetAmounts
    outside_turn: bool = False


class BudgetReservationResult(Struct, frozen=True):
    """A reservation: the agent may use `amounts` until the reservation `id` is settled.

    If orch granted less than the requested maximum, `limit_reason` explains the limit.
    """

    id: str
    amounts: BudgetAmounts
    limit_reason: str = ""


class SettleBudget(Struct, frozen=True, forbid_unknown_fields=True):
    """End the reservation `id`. The root records the used amounts and releases the rest."""

    id: str
    amounts: BudgetAmounts


class BudgetSettled(Struct, frozen=True):
    """The reservation is settled. `warning` describes the budgets that are nearly used up."""

    warning: str = ""


class SideSpending(Struct, frozen=True, forbid_unknown_fields=True):
    """Report an agent's usage outside its turns."""

    usage: Usage


class ChangeBudget(Struct, frozen=True, forbid_unknown_fields=True):
    """Change limits of the budget that all agents of a root share. Without changes, only return the budget."""

    change: BudgetChange = BudgetChange()


class BudgetShown(Struct, frozen=True):
    """The budget that all agents of a root share, the configured budget, and the amounts already used."""

    budget: Budget
    configured: Budget
    spent: BudgetAmounts


RESERVE_BUDGET: Final = Service(
    "reserve",
    ReserveBudget,
    BudgetReservationResult,
    EVERY_AGENT,
    "Reserve budget for a model request or tool call.",
    AgentFields(free=("minimum", "expected", "maximum", "outside_turn")),
)
SETTLE_BUDGET: Final = Service(
    "settle",
    SettleBudget,
    BudgetSettled,
    EVERY_AGENT,
    "Settle a reservation with the actual usage.",
    AgentFields(free=("id", "amounts")),
)
RECORD_USAGE: Final = Service(
    "record_usage",
    SideSpending,
    Empty,
    ARCHIVING_AGENTS,
    "Record usage that had no reservation.",
    AgentFields(free=("usage",)),
)
CHANGE_BUDGET: Final = Service(
    "budget", ChangeBudget, BudgetShown, USERS_ONLY, "Show or change the budget of all agents together."
)
