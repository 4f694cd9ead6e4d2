"""Who may spend how much: what is spent by the agents' own records, and what is put aside for responses under way.

A budget is an agent's and holds for it and everything below it; one more, the root's, holds for all of its agents.
What was spent in turns that are over is part of the tree. What a turn under way spends is kept here, and counts as
long as that turn is the one under way; what is put aside beside a turn, as long as that process is there: nothing has
to be undone when they end, however they do.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import msgspec
from msgspec import Struct

from orch_protocol.config import Dollars
from orch_protocol.errors import BudgetExceededError, ConfigError, ProtocolError
from orch_protocol.ids import new_id
from orch_protocol.services import Reserve, Reserved

from .nodes import Node, Nodes

__all__ = ["Budgets", "checked_cost", "dollars", "share"]


class _Hold(Struct, frozen=True):
    """Money that is put aside: for a turn, or (None) beside it, for the process that asked."""

    usd: float
    query_id: str | None
    incarnation: int


class _Account(Struct, frozen=True):
    """One budget: `owner` None is the root. `held` is what is put aside."""

    owner: Node | None
    limit: float
    spent: float
    held: float

    @property
    def left(self) -> float:
        """What can be put aside now."""
        return max(0.0, self.limit - self.spent - self.held)

    @property
    def soon(self) -> float:
        """What could be if nothing of what is held were spent."""
        return max(0.0, self.limit - self.spent)


class Budgets:
    """The budgets of the agents in `nodes`, and `ceiling` USD for all of them together if that is not None."""

    def __init__(self, nodes: Nodes, ceiling: float | None = None) -> None:
        self._nodes = nodes
        self._ceiling = ceiling
        self._holds: dict[str, dict[str, _Hold]] = {}
        self._spent: dict[str, tuple[str, float]] = {}
        """What agents have spent in a turn: the query's id, and USD."""

    def holds_for(self, id: str | None) -> bool:
        """Whether what the agent spends counts against any budget; None is an agent without parent that is to be."""
        return self._ceiling is not None or any(node.spec.limits.max_cost_usd is not None for node in self._chain(id))

    def under_way(self, node: Node) -> float:
        """Return what the agent and everything below it has spent in turns that are not over."""
        return sum(map(self._unrecorded, self._nodes.subtree(node.spec.id))) if self._spent else 0.0

    def reserve(self, id: str, want: Reserve) -> Reserved | None:
        """Put money aside for a response of the agent; None: not now, others hold what it needs.

        Raises BudgetExceededError when what it needs is not there.
        """
        node = self._nodes[id]
        query_id = node.pending.query_id if node.pending is not None and not want.beside else None
        if query_id is None and not (want.beside and node.running):
            raise ProtocolError(f"agent {node.spec.name!r} is in no turn: there is nothing to put money aside for")
        accounts = list(self._accounts(node))
        tightest = min(accounts, key=lambda account: account.left, default=None)
        if tightest is None:
            return Reserved(new_id(), want.most)
        usd = share(want, tightest.left, min(account.soon for account in accounts), others=self._others(node, tightest))
        if usd is None:
            return None
        if usd < want.least:
            short = min(accounts, key=lambda account: account.soon)
            raise BudgetExceededError(
                f"the next request may cost {dollars(want.least)} or more, and {dollars(short.soon)} is left: "
                f"{_told(short)}"
            )
        reserved = Reserved(new_id(), usd, "" if usd >= want.most else _shortened(tightest, usd))
        held = {each: hold for each, hold in self._holds.get(id, {}).items() if _is_held(node, hold)}
        self._holds[id] = held | {reserved.id: _Hold(usd, query_id, node.incarnation)}
        if query_id is not None and self._spent.get(id, ("", 0.0))[0] != query_id:
            self._spent[id] = (query_id, 0.0)
        return reserved

    def settle(self, id: str, hold: str, usd: float) -> None:
        """Let go what was put aside; what a turn spent counts as spent. Beside turns that is on record already."""
        held = self._holds.get(id, {}).pop(hold, None)
        query_id, spent = self._spent.get(id, ("", 0.0))
        if held is not None and held.query_id == query_id:
            self._spent[id] = (query_id, spent + usd)

    def holders(self) -> list[str]:
        """Return the topics by which it is told that turns or processes end for which money is put aside."""
        held = [(id, hold) for id in self._holds for hold in self._held(self._nodes[id])]
        return [
            f"gone:{id}:{hold.incarnation}" if hold.query_id is None else f"query:{hold.query_id}" for id, hold in held
        ]

    def _chain(self, id: str | None) -> Iterator[Node]:
        node = self._nodes.get(id)
        while node is not None:
            yield node
            node = self._nodes.get(node.spec.parent_id)

    def _accounts(self, asker: Node) -> Iterator[_Account]:
        for node in self._chain(asker.spec.id):
            if node.spec.limits.max_cost_usd is not None:
                yield self._account(node, node.spec.limits.max_cost_usd)
        if self._ceiling is not None:
            yield self._account(None, self._ceiling)

    def _account(self, owner: Node | None, limit: float) -> _Account:
        scope = self._scope(owner)
        spent = sum(node.usage.cost_usd + self._unrecorded(node) for node in scope)
        return _Account(owner, limit, spent, sum(hold.usd for node in scope for hold in self._held(node)))

    def _scope(self, owner: Node | None) -> Sequence[Node]:
        return list(self._nodes) if owner is None else self._nodes.subtree(owner.spec.id)

    def _others(self, asker: Node, account: _Account) -> bool:
        """Whether others are at work on the same budget. Those above the asker wait for it."""
        above = {node.spec.id for node in self._chain(asker.spec.id)}
        return any(node.spec.id not in above and self._is_paid(node) for node in self._scope(account.owner))

    def _is_paid(self, node: Node) -> bool:
        """Whether the agent is in a turn that costs money."""
        return node.pending is not None and self._spent.get(node.spec.id, ("", 0.0))[0] == node.pending.query_id

    def _unrecorded(self, node: Node) -> float:
        return self._spent[node.spec.id][1] if self._is_paid(node) else 0.0

    def _held(self, node: Node) -> Iterator[_Hold]:
        return (hold for hold in self._holds.get(node.spec.id, {}).values() if _is_held(node, hold))


def _is_held(node: Node, hold: _Hold) -> bool:
    if hold.query_id is None:
        return node.running and node.incarnation == hold.incarnation
    return node.pending is not None and node.pending.query_id == hold.query_id


def share(want: Reserve, left: float, soon: float, *, others: bool) -> float | None:
    """Return how much of `left` to put aside for what is wanted, less than `want.least` for no; None is to wait.

    `soon` is what there is when everybody else is done, if nobody takes any of it. Where `others` share the money, half
    of what is left stays for them, as long as that is enough for most answers.
    """
    room = max(left / 2, min(left, want.enough)) if others else left
    usd = min(want.most, room)
    if usd >= min(want.enough, soon) and usd >= want.least:
        return usd
    return None if soon > left and soon >= want.least else usd


def checked_cost(usd: float | None) -> float | None:
    """Return what an agent may spend. Raises ConfigError for what is no amount of money."""
    try:
        return msgspec.convert(usd, Dollars | None)
    except msgspec.ValidationError as error:
        raise ConfigError(
            f"max_cost_usd = {usd!r} does not do: a number of dollars above 0, or left out for no limit"
        ) from error


def dollars(usd: float) -> str:
    """Return an amount of money for people, to the millionth."""
    return f"${usd:.6f}".rstrip("0").rstrip(".") if usd < 1 else f"${usd:,.2f}"


def _told(account: _Account) -> str:
    """Return whose the budget is, how much of it is gone, and what raises it."""
    spent, limit = dollars(account.spent), dollars(account.limit)
    if account.owner is None:
        return (
            f"all agents together spent {spent} of {limit}, which is budget.max_cost_usd; set a higher one and start "
            "anew (orch daemon stop)"
        )
    spec = account.owner.spec
    return (
        f"agent {spec.name!r} and those below it spent {spent} of {limit}; "
        f"`orch resume {spec.seq} --max-cost USD` sets another limit"
    )


def _shortened(account: _Account, usd: float) -> str:
    return f"its last response could cost no more than {dollars(usd)}. Before it, {_told(account)}"
