"""One budget of one kind: how much of it somebody gets, and what is said of it. Pure: data in, words out."""

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
"""From this part of a budget on whoever uses it is told that it comes to an end."""
NOUNS: Final = {
    "tokens": ("token", "tokens"),
    "model_calls": ("model call", "model calls"),
    "tool_calls": ("call of tools", "calls of tools"),
    "processes": ("process", "processes"),
}
FLAGS: Final = {kind: f"--{limit_of(kind).removesuffix('_usd').replace('_', '-')}" for kind in KINDS}
"""How each limit is set from the shell."""


class BudgetAccount(Struct, frozen=True):
    """One budget of one kind: `owner` None is the root's. `held` is what is put aside."""

    kind: str
    owner: AgentRecord | None
    limit: float
    spent: float
    held: float

    @property
    def left(self) -> float:
        """What can be put aside now."""
        return max(0.0, self.limit - self.spent - self.held)

    @property
    def soon(self) -> float:
        """What could be if nothing of what is held were used."""
        return max(0.0, self.limit - self.spent)


def reservation_amount(
    least: float, enough: float, most: float, left: float, soon: float, *, others: bool
) -> float | None:
    """Return how much of `left` to put aside for what is wanted, less than `least` for no; None is to wait.

    `soon` is what there is when everybody else is done, if nobody takes any of it. Where `others` share it, half of
    what is left stays for them, as long as that is `enough` for most purposes.
    """
    room = max(left / 2, min(left, enough)) if others else left
    amount = min(most, room)
    if amount >= min(enough, soon) and amount >= least:
        return amount
    return None if soon > left and soon >= least else amount


def check_budget(budget: Budget) -> Budget:
    """Return `budget` as it is. Raises ConfigError for what is no budget, and for what is no limit."""
    if not isinstance(budget, Budget):
        raise ConfigError(f"budget must be an orch.Budget or orch.Limits; got {budget!r}")
    for name in Budget.__struct_fields__:
        _checked(name, getattr(budget, name))
    return budget


def budget_of(max_cost: float | None, budget: Budget | None) -> Budget:
    """Return what a program says that an agent may use. Raises ConfigError."""
    said = check_budget(budget or Budget())
    return said if max_cost is None else msgspec.structs.replace(said, max_cost_usd=_checked("max_cost_usd", max_cost))


def budget_change(max_cost: float | None, budget: Budget | None) -> BudgetChange:
    """Return what a program sets: limits that are given, and none where they are endless. Raises ConfigError."""
    if budget is not None and not isinstance(budget, Budget):
        raise ConfigError(f"budget must be an orch.Budget; got {budget!r}")
    given: dict[str, Any] = msgspec.structs.asdict(budget) if budget is not None else {}
    if max_cost is not None:
        given["max_cost_usd"] = max_cost
    said = {name: limit for name, limit in given.items() if limit is not None}
    endless = {name: None for name, limit in said.items() if limit == math.inf}
    return BudgetChange(
        **{name: _checked(name, limit) for name, limit in said.items() if name not in endless}, **endless
    )


def _checked(name: str, limit: Any) -> Any:
    try:
        return msgspec.convert({name: limit}, BudgetChange) and limit if limit is not UNSET else limit
    except (msgspec.ValidationError, UnicodeEncodeError) as error:
        what = (
            "a number of dollars" if name == "max_cost_usd" else "a number" if "seconds" in name else "a whole number"
        )
        raise ConfigError(f"{name} = {limit!r} does not do: {what} above 0, or left out for no limit") from error


def format_usd(usd: float) -> str:
    """Return an amount of money for people, to the millionth."""
    return f"${usd:.6f}".rstrip("0").rstrip(".") if usd < 1 else f"${usd:,.2f}"


def format_amount(kind: str, amount: float) -> str:
    """Return so much of `kind` for people."""
    if kind == "usd":
        return format_usd(amount)
    if kind in NOUNS:
        return f"{amount:,.0f} {NOUNS[kind][amount != 1]}"
    seconds = f"{amount:,.1f}".removesuffix(".0") if amount >= 1 else f"{amount:.3g}"
    return f"{seconds} s" + (" of tools" if kind == "tool_seconds" else " of work")


def exceeded_message(account: BudgetAccount, least: float) -> str:
    """Return why `least` cannot be had, whose budget that is, and what raises it."""
    left = format_amount(account.kind, account.soon)
    if account.kind == "usd":
        return f"the next request may cost {format_usd(least)} or more, and {left} is left: {_whose(account)}"
    if account.kind == "tokens":
        wanted = format_amount("tokens", least)
        return f"the next request may take {wanted} or more, and {left} are left: {_whose(account)}"
    return f"{format_amount(account.kind, least)} would be needed, and {left} are left: {_whose(account)}"


def reduced_message(account: BudgetAccount, amount: float) -> str:
    """Return that what was put aside was less than was wanted."""
    verb = "cost" if account.kind == "usd" else "take"
    most = format_amount(account.kind, amount)
    return f"its last response could {verb} no more than {most}. Before it, {_whose(account)}"


def exhausted_message(account: BudgetAccount) -> str:
    """Return that nothing is left."""
    return f"its budget is used up: {_whose(account)}"


def low_budget_notice(accounts: Sequence[BudgetAccount]) -> str:
    """Return what an agent is told of these, "" when there are none."""
    if not accounts:
        return ""
    parts = [f"{_who(each)} used {_part(each)}" for each in accounts]
    return (
        f"[Budget: {'; '.join(parts)}. When it is used up the turn ends: do what matters most now, and give your "
        "answer while there is enough left for it.]"
    )


def _part(account: BudgetAccount) -> str:
    percent = min(100, math.floor(100 * account.spent / account.limit))
    return f"{percent} % of what may be used, {_of(account)}"


def _of(account: BudgetAccount) -> str:
    if account.kind == "usd":
        return f"{format_usd(account.spent)} of {format_usd(account.limit)}"
    amount = format_amount(account.kind, account.spent)
    number = amount.split(" ")[0]
    return f"{number} of {format_amount(account.kind, account.limit)}"


def _who(account: BudgetAccount) -> str:
    return "all agents together" if account.owner is None else f"agent {account.owner.spec.name!r} and those below it"


def _whose(account: BudgetAccount) -> str:
    """Return whose the budget is, how much of it is gone, and what raises it."""
    verb, unit = ("spent", "USD") if account.kind == "usd" else ("used", "N")
    said = f"{_who(account)} {verb} {_of(account)}"
    flag = FLAGS[account.kind]
    if account.owner is None:
        return f"{said}, which is budget.{limit_of(account.kind)}; `orch budget {flag} {unit}` sets another limit"
    return f"{said}; `orch resume {account.owner.spec.seq} {flag} {unit}` sets another limit"
