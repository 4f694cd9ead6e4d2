"""Budgets: amounts of each kind, limits, and changes of limits.

One struct has a field for each kind. A reservation contains an amount for each kind. A budget checks only the kinds
that have a limit.
"""

from __future__ import annotations

from operator import attrgetter
from typing import Annotated, Any, Final, TypeVar

import msgspec
from msgspec import UNSET, Meta, Struct, UnsetType

from ..core.messages import Usage

__all__ = [
    "KINDS",
    "Budget",
    "BudgetAmounts",
    "BudgetChange",
    "amounts_of",
    "apply_change",
    "budget_in",
    "is_limited",
    "limit_of",
]

B = TypeVar("B", bound="Budget")

Dollars = Annotated[float, Meta(gt=0, le=1e9)]
Seconds = Annotated[float, Meta(gt=0, le=1e9)]
Count = Annotated[int, Meta(ge=1, le=10**12)]
Amount = Annotated[float, Meta(ge=0, le=1e12)]


class BudgetAmounts(Struct, frozen=True, gc=False, forbid_unknown_fields=True, kw_only=True):
    """Amounts of each kind.

    - `usd`: US dollars
    - `tokens`: tokens that models read and wrote
    - `seconds`: elapsed seconds of turns; `tool_seconds`: seconds that tools ran
    - `model_calls`, `tool_calls`: number of model responses and tool calls
    - `processes`: number of started processes
    """

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
        """Return the amounts of `kinds`, with 0 for all other kinds."""
        return BudgetAmounts(**{kind: getattr(self, kind) for kind in kinds})


KINDS: Final = BudgetAmounts.__struct_fields__


class Budget(Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True, kw_only=True):
    """The maximum amount of each kind. None means no limit. See BudgetAmounts."""

    max_cost_usd: Dollars | None = None
    max_tokens: Count | None = None
    max_seconds: Seconds | None = None
    max_tool_seconds: Seconds | None = None
    max_model_calls: Count | None = None
    max_tool_calls: Count | None = None
    max_processes: Count | None = None


def is_limited(budget: Budget) -> bool:
    """Return whether `budget` has at least one limit. A limit is never 0."""
    return any(_limits(budget))


_limits = attrgetter(*Budget.__struct_fields__)


class BudgetChange(Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True, kw_only=True):
    """A change of limits. None removes a limit. An unset field leaves its limit unchanged."""

    max_cost_usd: Dollars | UnsetType | None = UNSET
    max_tokens: Count | UnsetType | None = UNSET
    max_seconds: Seconds | UnsetType | None = UNSET
    max_tool_seconds: Seconds | UnsetType | None = UNSET
    max_model_calls: Count | UnsetType | None = UNSET
    max_tool_calls: Count | UnsetType | None = UNSET
    max_processes: Count | UnsetType | None = UNSET

    def limits(self) -> dict[str, Any]:
        """Return the changed limits. Keys are the names of limits."""
        given = ((name, getattr(self, name)) for name in Budget.__struct_fields__)
        return {name: limit for name, limit in given if limit is not UNSET}


def limit_of(kind: str) -> str:
    """Return the name of the limit on `kind`."""
    return "max_cost_usd" if kind == "usd" else f"max_{kind}"


def amounts_of(usage: Usage) -> BudgetAmounts:
    """Return `usage` as budget amounts."""
    tokens = usage.input_tokens + usage.output_tokens + usage.cache_read_tokens + usage.cache_write_tokens
    return BudgetAmounts(
        usd=usage.cost_usd,
        tokens=tokens,
        tool_seconds=usage.tool_seconds,
        model_calls=usage.model_calls,
        tool_calls=usage.tool_calls,
    )


def apply_change(budget: B, change: BudgetChange) -> B:
    """Return `budget` with the limits of `change`.

    The result has the class of `budget`, which may be a subclass of Budget.
    """
    return msgspec.structs.replace(budget, **change.limits())


def budget_in(budget: Budget) -> Budget:
    """Return the limits of `budget` as a plain Budget, without the additional fields of a subclass."""
    return Budget(**{name: getattr(budget, name) for name in Budget.__struct_fields__})
