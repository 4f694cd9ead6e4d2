"""Services for budgets and rate limits: reservations, usage, and admission of requests to a provider."""

from __future__ import annotations

from typing import Final

from ..policy.budget import (
    BudgetReservationResult,
    BudgetSettled,
    BudgetShown,
    ChangeBudget,
    ReserveBudget,
    SettleBudget,
    SideSpending,
)
from ..policy.rate_limits import AdmitRequest, ModelRefused, RequestAdmitted, RequestEnded
from .service import ARCHIVING_AGENTS, EVERY_AGENT, USERS_ONLY, Empty, Service

__all__ = [
    "ADMIT_REQUEST",
    "CHANGE_BUDGET",
    "RECORD_USAGE",
    "RELEASE_REQUEST",
    "REPORT_RATE_LIMIT",
    "RESERVE_BUDGET",
    "SETTLE_BUDGET",
]

RESERVE_BUDGET: Final = Service(
    "reserve", ReserveBudget, BudgetReservationResult, EVERY_AGENT, "Reserve budget for a model request or tool call."
)
SETTLE_BUDGET: Final = Service(
    "settle", SettleBudget, BudgetSettled, EVERY_AGENT, "Settle a reservation with the actual usage."
)
RECORD_USAGE: Final = Service(
    "record_usage", SideSpending, Empty, ARCHIVING_AGENTS, "Record usage that had no reservation."
)
CHANGE_BUDGET: Final = Service(
    "budget", ChangeBudget, BudgetShown, USERS_ONLY, "Show or change the budget of all agents together."
)
REPORT_RATE_LIMIT: Final = Service(
    "report_rate_limit",
    ModelRefused,
    Empty,
    EVERY_AGENT,
    "Report that a provider refused a request for its rate limit.",
)
ADMIT_REQUEST: Final = Service(
    "admit_request", AdmitRequest, RequestAdmitted, EVERY_AGENT, "Wait for permission to send a rate-limited request."
)
RELEASE_REQUEST: Final = Service(
    "release_request", RequestEnded, Empty, EVERY_AGENT, "Report that an admitted request has ended."
)
