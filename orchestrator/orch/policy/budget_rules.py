"""Rules for one budget of one kind.

The rules determine the amount to reserve, check limits, and write messages. Pure functions.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Final

import msgspec
from msgspec import UNSET, Struct

from orch_protocol.core.errors import ConfigError
from orch_protocol.policy.budget import KINDS, Budget, BudgetChange, limit_of

from ..tree.agents.state import AgentRecord

__all__ = [
    "LOW_SHARE",
    "BudgetAccount",
    "budget_change",
    "budget_of",
    "check_budget",
    "exceeded_message",
    "exhausted_message",
    "format_amount",
    "format_usd",
    "low_budget_notice",
    "reduced_message",
    "reservation_amount",
]

LOW_SHARE: Final = 0.8
"""When this share of a budget is used, the agents of the budget are warned."""
NOUNS: Final = {
    "tokens": ("token", "tokens"),
    "model_calls": ("model call", "model calls"),
    "tool_calls": ("call of tools", "calls of tools"),
    "processes": ("process", "processes"),
}
FLAGS: Final = {kind: f"--{limit_of(kind).removesuffix('_usd').replace('_', '-')}" for kind in KINDS}
"""Command-line option of each limit."""


class BudgetAccount(Struct, frozen=True):
    """One budget of one kind.

    `owner` is the agent that has the budget, None for the root's budget. `reserved` is the reserved amount.
    """

    kind: str
    owner: AgentRecord | None
    limit: float
    spent: float
    reserved: float

    @property
    def left(self) -> float:
        """The amount that can be reserved now."""
        return max(0.0, self.limit - self.spent - self.reserved)

    @property
    def left_without_reservations(self) -> float:
        """The amount that could be reserved if all current reservations ended without being used."""
        return max(0.0, self.limit - self.spent)


def reservation_amount(
    minimum: float, expected: float, limit: float, left: float, left_without_reservations: float, *, is_shared: bool
) -> float | None:
    """Return the amount to reserve, or None to wait. An amount below `minimum` means that the request is refused.

    `left_without_reservations` is the amount that would be available if all current reservations ended without being
    used. If the budget `is_shared` with other agents, at most half of `left` is reserved, or up to `expected` if that
    is more.
    """
    room = max(left / 2, min(left, expected)) if is_shared else left
    amount = min(limit, room)
    if amount >= min(expected, left_without_reservations) and amount >= minimum:
        return amount
    return None if left_without_reservations > left and left_without_reservations >= minimum else amount


def check_budget(budget: Budget, argument: str = "budget") -> Budget:
    """Return `budget`, the value of `argument`. Raises ConfigError for a wrong type or a limit that is not valid."""
    if not isinstance(budget, Budget):
        raise ConfigError(f"{argument} must be an orch.Budget or orch.Limits; got {budget!r}")
    for name in Budget.__struct_fields__:
        _checked(name, getattr(budget, name))
    return budget


def budget_of(max_cost: float | None, budget: Budget | None) -> Budget:
    """Return the budget of an agent from the arguments of `spawn`. Raises ConfigError."""
    checked = check_budget(budget or Budget())
    return (
        checked
        if max_cost is None
        else msgspec.structs.replace(checked, max_cost_usd=_checked("max_cost_usd", max_cost))
    )


def budget_change(max_cost: float | None, budget: Budget | None) -> BudgetChange:
    """Return the change of limits that a program requests. `math.inf` removes a limit. Raises ConfigError."""
    if budget is not None and not isinstance(budget, Budget):
        raise ConfigError(f"budget must be an orch.Budget; got {budget!r}")
    given: dict[str, Any] = msgspec.structs.asdict(budget) if budget is not None else {}
    if max_cost is not None:
        given["max_cost_usd"] = max_cost
    limits = {name: limit for name, limit in given.items() if limit is not None}
    removed = {name: None for name, limit in limits.items() if limit == math.inf}
    return BudgetChange(
        **{name: _checked(name, limit) for name, limit in limits.items() if name not in removed}, **removed
    )


def _checked(name: str, limit: Any) -> Any:
    try:
        return msgspec.convert({name: limit}, BudgetChange) and limit if limit is not UNSET else limit
    except (msgspec.ValidationError, UnicodeEncodeError) as error:
        what = (
            "a number of dollars" if name == "max_cost_usd" else "a number" if "seconds" in name else "a whole number"
        )
        raise ConfigError(f"{name} = {limit!r} is invalid: use {what} above 0, or leave it out for no limit") from error


def format_usd(usd: float) -> str:
    """Return an amount of money as text, with up to six decimals."""
    return f"${usd:.6f}".rstrip("0").rstrip(".") if usd < 1 else f"${usd:,.2f}"


def format_amount(kind: str, amount: float) -> str:
    """Return an amount of `kind` as text with its unit."""
    if kind == "usd":
        return format_usd(amount)
    if kind in NOUNS:
        return f"{amount:,.0f} {NOUNS[kind][amount != 1]}"
    seconds = f"{amount:,.1f}".removesuffix(".0") if amount >= 1 else f"{amount:.3g}"
    return f"{seconds} s" + (" of tools" if kind == "tool_seconds" else " of work")


def exceeded_message(account: BudgetAccount, minimum: float) -> str:
    """Return the message for an amount `minimum` that cannot be reserved.

    The message states what is left, whose budget it is, and how to raise the limit.
    """
    left = format_amount(account.kind, account.left_without_reservations)
    remedy = _usage_and_remedy(account)
    if account.kind == "usd":
        return f"the next request may cost {format_usd(minimum)} or more, but only {left} is left: {remedy}"
    if account.kind == "tokens":
        wanted = format_amount("tokens", minimum)
        return f"the next request may take {wanted} or more, but only {left} are left: {remedy}"
    return f"{format_amount(account.kind, minimum)} would be needed, but only {left} are left: {remedy}"


def reduced_message(account: BudgetAccount, amount: float) -> str:
    """Return the message for a request that could reserve only `amount`, which is less than it requested."""
    limit = format_amount(account.kind, amount)
    return f"the last response was limited to {limit}. Before that response, {_usage_and_remedy(account)}"


def exhausted_message(account: BudgetAccount) -> str:
    """Return the message for a budget that is used up."""
    return f"its budget is used up: {_usage_and_remedy(account)}"


def low_budget_notice(accounts: Sequence[BudgetAccount]) -> str:
    """Return the warning for an agent about `accounts` that are nearly used up. Return "" if `accounts` is empty."""
    if not accounts:
        return ""
    parts = [f"{_owner_text(each)} used {_used_percent(each)}" for each in accounts]
    return (
        f"[Budget: {'; '.join(parts)}. When a budget is used up, your turn ends. Do what matters most now, and give "
        "your answer while there is enough left for it.]"
    )


def _used_percent(account: BudgetAccount) -> str:
    percent = min(100, math.floor(100 * account.spent / account.limit))
    return f"{percent} % of the limit, {_used_of_limit(account)}"


def _used_of_limit(account: BudgetAccount) -> str:
    if account.kind == "usd":
        return f"{format_usd(account.spent)} of {format_usd(account.limit)}"
    amount = format_amount(account.kind, account.spent)
    number = amount.split(" ")[0]
    return f"{number} of {format_amount(account.kind, account.limit)}"


def _owner_text(account: BudgetAccount) -> str:
    return "all agents together" if account.owner is None else f"agent {account.owner.spec.name!r} and its descendants"


def _usage_and_remedy(account: BudgetAccount) -> str:
    """Return a text with the owner of the budget, the used amount, and the command that raises the limit."""
    verb, unit = ("spent", "USD") if account.kind == "usd" else ("used", "N")
    text = f"{_owner_text(account)} {verb} {_used_of_limit(account)}"
    flag = FLAGS[account.kind]
    if account.owner is None:
        return f"{text}, which is budget.{limit_of(account.kind)}; `orch budget {flag} {unit}` sets another limit"
    return f"{text}; `orch resume {account.owner.spec.seq} {flag} {unit}` sets another limit"
