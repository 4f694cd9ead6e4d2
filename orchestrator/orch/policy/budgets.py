"""Who may use how much: what is used by the agents' own records, and what is put aside for what is under way.

A budget is an agent's and holds for it and everything below it; one more, the root's, holds for all of its agents.
What an agent uses to answer a peer is charged to the peer's path too: each budget on either path once.
Each bounds any number of kinds of amounts, and for each kind there is one account. What was used in turns that are over
is part of the tree. What a turn under way uses is kept here, and counts as long as that turn is the one under way; what
is put aside beside a turn, as long as that process is there: nothing has to be undone when they end, however they do.
What is put aside for a turn is on record before it is used: a root that dies meanwhile leaves word of it. Time at work
and processes are in the tree at once: nothing is put aside of them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Final

import msgspec
from msgspec import Struct

from orch_protocol.core.errors import BudgetExceededError, ProtocolError
from orch_protocol.core.ids import new_id
from orch_protocol.core.messages import Usage
from orch_protocol.policy.budget import (
    KINDS,
    Budget,
    BudgetAmounts,
    BudgetChange,
    BudgetReservationResult,
    ReserveBudget,
    amounts_of,
    budget_in,
    limit_of,
)

from ..tree.agents.state import AgentRecord, TreeState
from ..tree.journal.entries import (
    BudgetReleased,
    BudgetReserved,
    Entry,
    QueryFinished,
    RootBudgetChanged,
    UsageRecorded,
)
from .budget_rules import (
    LOW_SHARE,
    BudgetAccount,
    exceeded_message,
    exhausted_message,
    low_budget_notice,
    reduced_message,
    reservation_amount,
)

__all__ = ["BudgetLedger"]

NOTHING: Final = BudgetAmounts()
WITH_PROCESS: Final = frozenset({"AgentDiedError", "AgentGoneError"})
"""Errors by which a query ends whose process is gone, or about to be."""
LIMITS: Final = tuple((kind, limit_of(kind)) for kind in KINDS)


class _Reservation(Struct, frozen=True):
    """What is put aside: for a turn, or (None) beside it, for the process that asked."""

    amounts: BudgetAmounts
    query_id: str | None
    incarnation: int
    least: BudgetAmounts = NOTHING


class _TurnSpending(Struct, frozen=True):
    """What is counted of a turn under way: what it used, and how many holds of responses and of calls were settled."""

    query_id: str = ""
    spent: BudgetAmounts = NOTHING
    responses: int = 0
    calls: int = 0


NO_TURN: Final = _TurnSpending()


class BudgetLedger:
    """The budgets of the agents in `nodes`, and what is `configured` for all of them together. `clock` is the time."""

    def __init__(self, nodes: TreeState, configured: Budget, clock: Callable[[], float]) -> None:
        self._nodes = nodes
        self._clock = clock
        self.configured = budget_in(configured)
        self._holds: dict[str, dict[str, _Reservation]] = {}
        self._turns: dict[str, _TurnSpending] = {}
        for id, aside in nodes.aside.items():
            if (asked := nodes[id].pending) is not None:  # a root before this one ended meanwhile
                calls = sum(map(_is_call, aside.let_go))
                self._turns[id] = _TurnSpending(asked.query_id, NOTHING, len(aside.let_go) - calls, calls)
                self._holds[id] = {
                    hold: _Reservation(least, asked.query_id, nodes[id].incarnation, least)
                    for hold, least in aside.held.items()
                }

    @property
    def of_all(self) -> Budget:
        """What all agents together may use: as configured, but for what was set anew while that was so."""
        if not self._nodes.root_budgets:
            return self.configured
        budget = self.configured
        for entry in self._nodes.root_budgets:
            still = {
                name: limit
                for name, limit in entry.change.limits().items()
                if getattr(entry.configured, name) == getattr(self.configured, name)
            }
            budget = msgspec.structs.replace(budget, **still)
        return budget

    def change(self, change: BudgetChange) -> RootBudgetChanged | None:
        """Return what is to be on record when the budget of all is to be `change`d."""
        if not change.limits():
            return None
        return RootBudgetChanged(at=self._clock(), change=change, configured=self.configured)

    def kinds_for(self, id: str | None) -> tuple[str, ...]:
        """Return of what the agent may not use as much as it likes; None is an agent without parent that is to be."""
        budgets = [self.of_all, *(node.spec.limits for node in self._charged(self._nodes.get(id)))]
        bounded = {kind for budget in budgets for kind, limit in LIMITS if getattr(budget, limit) is not None}
        return tuple(kind for kind in KINDS if kind in bounded) if bounded else ()

    def spent(self, owner: AgentRecord | None) -> BudgetAmounts:
        """Return all that the agent and those below it have used, None: all agents."""
        used = sum(map(self._unrecorded, self._at_work(owner)), amounts_of(self._recorded(owner)))
        worked = self._nodes.worked if owner is None else owner.worked
        return msgspec.structs.replace(used, seconds=worked.seconds(self._clock()), processes=self._processes(owner))

    def reserve(self, id: str, want: ReserveBudget) -> BudgetReservationResult | None:
        """Put aside what the agent is about to use; None: not now, others hold what it needs.

        Raises BudgetExceededError when what it needs is not there.
        """
        node = self._nodes[id]
        query_id = node.pending.query_id if node.pending is not None and not want.beside else None
        if query_id is None and not (want.beside and node.running):
            raise ProtocolError(f"cannot reserve budget for agent {node.spec.name!r}: it has no running turn")
        granted: dict[str, float] = {}
        why = ""
        for kind in KINDS:
            least, enough, most = (getattr(each, kind) for each in (want.least, want.enough, want.most))
            granted[kind] = most
            accounts = list(self._accounts(node, kind)) if most else []
            if not accounts:
                continue
            tightest = min(accounts, key=lambda account: account.left)
            soon = min(accounts, key=lambda account: account.soon)
            others = self._others(node, tightest)
            amount = reservation_amount(least, enough, most, tightest.left, soon.soon, others=others)
            if amount is None:
                return None
            if amount < least:
                raise BudgetExceededError(exceeded_message(soon, least))
            granted[kind] = amount
            if amount < most:
                why = reduced_message(tightest, amount)
        reserved = BudgetReservationResult(new_id(), BudgetAmounts(**granted), why)
        held = {each: hold for each, hold in self._holds.get(id, {}).items() if _is_held(node, hold)}
        self._forget()
        self._holds[id] = held | {reserved.id: _Reservation(reserved.amounts, query_id, node.incarnation, want.least)}
        if query_id is not None and self._turn(id).query_id != query_id:
            self._turns[id] = _TurnSpending(query_id)
        return reserved

    def put_aside(self, id: str, hold: str) -> BudgetReserved | None:
        """Return what is to be on record of what was just reserved; None of what is beside turns."""
        held = self._holds[id][hold]
        if held.query_id is None:
            return None
        return BudgetReserved(at=self._clock(), id=id, query_id=held.query_id, hold=hold, least=held.least)

    def take_back(self, id: str, hold: str) -> None:
        """Let what was reserved not have been."""
        self._holds[id].pop(hold, None)

    def settle(self, id: str, hold: str, used: BudgetAmounts) -> BudgetReleased | None:
        """Let go what was put aside; what a turn used counts as used. Beside turns that is on record already.

        Returns what is to be on record.
        """
        held = self._holds.get(id, {}).pop(hold, None)
        turn = self._turn(id)
        if held is not None and held.query_id == turn.query_id:
            calls = _is_call(held.least)
            self._turns[id] = _TurnSpending(
                turn.query_id, turn.spent + used, turn.responses + (not calls), turn.calls + calls
            )
        return (
            BudgetReleased(at=self._clock(), id=id, hold=hold)
            if held is not None and held.query_id is not None
            else None
        )

    def charged(self, entries: list[Entry]) -> list[Entry]:
        """Return `entries`, and behind those of queries that ended with their processes what these had begun and could
        not record: a request that was made costs something, whatever became of the answer."""
        if not self._holds:
            return entries
        ended = [
            each
            for each in entries
            if isinstance(each, QueryFinished) and each.error and each.error.type in WITH_PROCESS
        ]
        lost = [(each, usage) for each in ended if (usage := self._lost(each)) is not None]
        return [*entries, *(UsageRecorded(at=each.at, id=each.id, usage=usage) for each, usage in lost)]

    def low(self, id: str) -> str:
        """Return what the agent is to be told of budgets that it is bound by and that are nearly used up."""
        accounts = (account for kind in self.kinds_for(id) for account in self._accounts(self._nodes[id], kind))
        return low_budget_notice([account for account in accounts if account.spent >= LOW_SHARE * account.limit])

    def holders(self) -> list[str]:
        """Return the topics by which it is told that turns or processes end for which something is put aside."""
        held = [(id, hold) for id in self._holds for hold in self._held(self._nodes[id])]
        return [
            f"gone:{id}:{hold.incarnation}" if hold.query_id is None else f"query:{hold.query_id}" for id, hold in held
        ]

    def require_process(self, id: str | None, asker: str | None = None) -> None:
        """Raise BudgetExceededError unless one more process may be started for the agent, None: for a new one.

        `asker` is the agent that is about to ask it.
        """
        for account in self._accounts(self._nodes.get(id), "processes", asker):
            if account.left < 1:
                raise BudgetExceededError(exceeded_message(account, 1))

    def require_time(self, id: str, asker: str | None = None) -> None:
        """Raise BudgetExceededError unless the agent may be at work for a while. `asker` is about to ask it."""
        if (left := self.time_left(id, asker)) is not None and left[0] <= 0:
            raise BudgetExceededError(left[1])

    def time_left(self, id: str, asker: str | None = None) -> tuple[float, str] | None:
        """Return how many more seconds the agent may be at work and what it is told when they are over; None for no
        limit."""
        tightest = min(
            self._accounts(self._nodes[id], "seconds", asker), key=lambda account: account.left, default=None
        )
        return None if tightest is None else (tightest.left, exhausted_message(tightest))

    def _accounts(self, user: AgentRecord | None, kind: str, asker: str | None = None) -> Iterator[BudgetAccount]:
        """Yield the accounts that bind `user`, None: an agent without parent. `asker` is about to ask it."""
        limit = limit_of(kind)
        for node in self._charged(user, asker):
            if (most := getattr(node.spec.limits, limit)) is not None:
                yield self._account(node, kind, most)
        if (most := getattr(self.of_all, limit)) is not None:
            yield self._account(None, kind, most)

    def _charged(self, user: AgentRecord | None, asker: str | None = None) -> Iterator[AgentRecord]:
        """Yield the agents that are charged for what `user` uses, each once. `asker` is about to ask it."""
        if user is None:
            return
        yield from self._nodes.chain(user.spec.id)
        payers = self._nodes.payers(asker, user.spec.id) if asker is not None else user.payers
        yield from (node for node in map(self._nodes.get, payers) if node is not None)

    def _account(self, owner: AgentRecord | None, kind: str, limit: float) -> BudgetAccount:
        if kind == "seconds":
            worked = self._nodes.worked if owner is None else owner.worked
            return BudgetAccount(kind, owner, limit, worked.seconds(self._clock()), 0.0)
        if kind == "processes":
            return BudgetAccount(kind, owner, limit, self._processes(owner), 0.0)
        at_work = self._at_work(owner)
        spent = amounts_of(self._recorded(owner))
        held = sum(getattr(hold.amounts, kind) for node in at_work for hold in self._held(node))
        more = sum(getattr(self._unrecorded(node), kind) for node in at_work)
        return BudgetAccount(kind, owner, limit, getattr(spent, kind) + more, held)

    def _recorded(self, owner: AgentRecord | None) -> Usage:
        """Return what the agent, those below it and peers for it, None: all, have used in turns that are over."""
        return self._nodes.usage if owner is None else self._nodes.tree_usage(owner.spec.id) + owner.peer_usage

    def _processes(self, owner: AgentRecord | None) -> int:
        """Return how many processes were started; those of holders are what asking an archive takes, and bounded so."""
        if owner is None:
            return self._nodes.processes
        own = sum(node.incarnation for node in self._nodes.subtree(owner.spec.id) if not node.is_holder)
        return own + owner.peer_processes

    def _at_work(self, owner: AgentRecord | None) -> list[AgentRecord]:
        """Return the agents that may hold or have used something that the owner is charged for."""
        nodes = [self._nodes[id] for id in {*self._holds, *self._turns}]
        return nodes if owner is None else [node for node in nodes if owner in self._charged(node)]

    def _forget(self) -> None:
        """Let go of turns and processes that are over."""
        for id in [id for id in self._turns if not self._is_counted(self._nodes[id])]:
            del self._turns[id]
        for id in [id for id in self._holds if not any(self._held(self._nodes[id]))]:
            del self._holds[id]

    def _others(self, asker: AgentRecord, account: BudgetAccount) -> bool:
        """Whether others are at work on the same budget. Those above the asker, and its payers, wait for it."""
        above = {node.spec.id for node in self._charged(asker)}
        return any(node.spec.id not in above and self._is_counted(node) for node in self._at_work(account.owner))

    def _is_counted(self, node: AgentRecord) -> bool:
        """Whether the agent is in a turn of which something is counted."""
        return node.pending is not None and self._turn(node.spec.id).query_id == node.pending.query_id

    def _turn(self, id: str) -> _TurnSpending:
        return self._turns.get(id, NO_TURN)

    def _unrecorded(self, node: AgentRecord) -> BudgetAmounts:
        return self._turn(node.spec.id).spent if self._is_counted(node) else NOTHING

    def _lost(self, ended: QueryFinished) -> Usage | None:
        """Return the least that was begun in a turn and is neither settled nor on record; None for nothing."""
        turn = self._turn(ended.id)
        holds = [each for each in self._holds.get(ended.id, {}).values() if each.query_id == ended.query_id]
        if not holds or turn.query_id != ended.query_id:
            return None
        responses = [each for each in holds if not _is_call(each.least)][
            max(0, ended.usage.model_calls - turn.responses) :
        ]
        calls = [each for each in holds if _is_call(each.least)][max(0, ended.usage.tool_calls - turn.calls) :]
        least = sum((each.least for each in (*responses, *calls)), NOTHING)
        return (
            Usage(
                input_tokens=int(least.tokens),
                cost_usd=least.usd,
                cost_known=not responses,
                model_calls=len(responses),
                tool_calls=len(calls),
                tool_seconds=least.tool_seconds,
            )
            if responses or calls
            else None
        )

    def _held(self, node: AgentRecord) -> Iterator[_Reservation]:
        return (hold for hold in self._holds.get(node.spec.id, {}).values() if _is_held(node, hold))


def _is_call(least: BudgetAmounts) -> bool:
    return bool(least.tool_calls or least.tool_seconds)


def _is_held(node: AgentRecord, hold: _Reservation) -> bool:
    if hold.query_id is None:
        return node.running and node.incarnation == hold.incarnation
    return node.pending is not None and node.pending.query_id == hold.query_id
