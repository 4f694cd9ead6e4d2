"""What may be used and what is: amounts by kind, limits on them, and what is put aside before anything is done.

One vector for all kinds: whoever puts something aside says how much of each, and whoever keeps a budget goes through
the kinds that it bounds.
"""

from __future__ import annotations

from typing import Annotated, Any, Final, TypeVar

import msgspec
from msgspec import UNSET, Meta, Struct, UnsetType

from ..core.messages import Usage

__all__ = [
    "KINDS",
    "Budget",
    "BudgetAmounts",
    "BudgetChange",
    "BudgetReservationResult",
    "BudgetSettled",
    "BudgetShown",
    "ChangeBudget",
    "ReserveBudget",
    "SettleBudget",
    "SideSpending",
    "amounts_of",
    "apply_change",
    "budget_in",
    "limit_of",
]

B = TypeVar("B", bound="Budget")

Dollars = Annotated[float, Meta(gt=0, le=1e9)]
Seconds = Annotated[float, Meta(gt=0, le=1e9)]
Count = Annotated[int, Meta(ge=1, le=10**12)]
Amount = Annotated[float, Meta(ge=0, le=1e12)]


class BudgetAmounts(Struct, frozen=True, gc=False, forbid_unknown_fields=True, kw_only=True):
    """So much of each kind: US dollars, tokens that models read and wrote, seconds of work by the clock, seconds that
    tools ran, responses of models, calls of tools, processes that were started."""

    usd: Amount = 0.0
    tokens: Amount = 0.0
    seconds: Amount = 0.0
    tool_seconds: Amount = 0.0
    model_calls: Amount = 0.0
    tool_calls: Amount = 0.0
    processes: Amount = 0.0

    def __add__(self, other: BudgetAmounts) -> BudgetAmounts:
        return BudgetAmounts(**{kind: getattr(self, kind) + getattr(other, kind) for kind in KINDS})

    def only(self, kinds: frozenset[str]) -> BudgetAmounts:
        """Return what of this is of `kinds`."""
        return BudgetAmounts(**{kind: getattr(self, kind) for kind in kinds})


KINDS: Final = BudgetAmounts.__struct_fields__


class Budget(Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True, kw_only=True):
    """The most of each kind that may be used in all; None is no limit. See Amounts."""

    max_cost_usd: Dollars | None = None
    max_tokens: Count | None = None
    max_seconds: Seconds | None = None
    max_tool_seconds: Seconds | None = None
    max_model_calls: Count | None = None
    max_tool_calls: Count | None = None
    max_processes: Count | None = None


class BudgetChange(Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True, kw_only=True):
    """Limits that are set anew: None takes one away, what is left out stays."""

    max_cost_usd: Dollars | UnsetType | None = UNSET
    max_tokens: Count | UnsetType | None = UNSET
    max_seconds: Seconds | UnsetType | None = UNSET
    max_tool_seconds: Seconds | UnsetType | None = UNSET
    max_model_calls: Count | UnsetType | None = UNSET
    max_tool_calls: Count | UnsetType | None = UNSET
    max_processes: Count | UnsetType | None = UNSET

    def limits(self) -> dict[str, Any]:
        """Return what is set, by the limit's name."""
        said = ((name, getattr(self, name)) for name in Budget.__struct_fields__)
        return {name: limit for name, limit in said if limit is not UNSET}


class ReserveBudget(Struct, frozen=True, forbid_unknown_fields=True):
    """Put something aside: the least that will do, what is enough nearly always, and the most that it can take.

    For agents in a turn, or `beside` it: what that takes is told otherwise.
    """

    least: BudgetAmounts
    enough: BudgetAmounts
    most: BudgetAmounts
    beside: bool = False


class BudgetReservationResult(Struct, frozen=True):
    """So much may be used, until `id` is settled. `why` tells of the budget when that is not all."""

    id: str
    amounts: BudgetAmounts
    why: str = ""


class SettleBudget(Struct, frozen=True, forbid_unknown_fields=True):
    """Of what was put aside as `id` so much was used, which is on record; the rest is free again."""

    id: str
    amounts: BudgetAmounts


class BudgetSettled(Struct, frozen=True):
    """It is. `low` tells of the budgets that are nearly used up."""

    low: str = ""


class SideSpending(Struct, frozen=True, forbid_unknown_fields=True):
    """The agent used so much beside its turns."""

    usage: Usage


class ChangeBudget(Struct, frozen=True, forbid_unknown_fields=True):
    """Set limits anew for all agents of a root together; without any only say what there are."""

    change: BudgetChange = BudgetChange()


class BudgetShown(Struct, frozen=True):
    """What all agents of a root may use together, what the configuration says of that, and what they have used."""

    budget: Budget
    configured: Budget
    spent: BudgetAmounts


def limit_of(kind: str) -> str:
    """Return the name of the limit on `kind`."""
    return "max_cost_usd" if kind == "usd" else f"max_{kind}"


def amounts_of(usage: Usage) -> BudgetAmounts:
    """Return what `usage` comes to of each kind that it tells of."""
    tokens = usage.input_tokens + usage.output_tokens + usage.cache_read_tokens + usage.cache_write_tokens
    return BudgetAmounts(
        usd=usage.cost_usd,
        tokens=tokens,
        tool_seconds=usage.tool_seconds,
        model_calls=usage.model_calls,
        tool_calls=usage.tool_calls,
    )


def apply_change(budget: B, change: BudgetChange) -> B:
    """Return `budget`, or what is one and more, with the limits that `change` sets."""
    return msgspec.structs.replace(budget, **change.limits())


def budget_in(budget: Budget) -> Budget:
    """Return the budget alone of what is one and more."""
    return Budget(**{name: getattr(budget, name) for name in Budget.__struct_fields__})
