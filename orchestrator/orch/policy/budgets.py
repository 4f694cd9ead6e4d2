"""The budget ledger, which contains what agents have used and what they have reserved for requests in progress.

A budget belongs to an agent and covers the agent's descendants too. One more budget, the root's budget, covers all
agents. If an agent answers a query of a peer, the usage is also charged to that peer and its ancestors. Each budget is
charged only once.

A budget limits several kinds of amounts, with one account for each kind. The tree contains the usage of finished turns.
The ledger counts the usage and reservations of a turn only while the turn is in progress, and reservations outside
turns only while the process exists. Therefore, the ledger needs no cleanup when a turn or a process ends. A reservation
for a turn is recorded before it is used, so that it is not lost if the root dies. The tree counts working time and
processes at once, without reservations.
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
    amounts_of,
    budget_in,
    is_limited,
    limit_of,
)
from orch_protocol.services.policy.budgets import BudgetReservationResult, ReserveBudget

from ..tree.agents.state import AgentRecord, TreeState
from ..tree.interface.topics import ExitTopic, QueryTopic, Topic
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
PROCESS_ENDED_ERRORS: Final = frozenset({"AgentDiedError", "AgentGoneError"})
"""Errors of a query that mean that the agent's process has ended or is about to end."""
LIMITS: Final = tuple((kind, limit_of(kind)) for kind in KINDS)


class _Reservation(Struct, frozen=True):
    """Amounts that are reserved for the turn of the query `query_id`.

    If `query_id` is None, they are reserved for the process, outside a turn.
    """

    amounts: BudgetAmounts
    query_id: str | None
    incarnation: int
    minimum: BudgetAmounts = NOTHING


class _TurnSpending(Struct, frozen=True):
    """The usage of a turn in progress.

    `responses` and `calls` are the numbers of finished reservations for responses and for tool calls.
    """

    query_id: str = ""
    spent: BudgetAmounts = NOTHING
    responses: int = 0
    calls: int = 0


NO_TURN: Final = _TurnSpending()


class BudgetLedger:
    """The budgets of the agents in `agents`. `configured` is the shared budget of all these agents.

    `clock` returns epoch seconds.
    """

    def __init__(self, agents: TreeState, configured: Budget, clock: Callable[[], float]) -> None:
        self._agents = agents
        self._clock = clock
        self.configured = budget_in(configured)
        agents.has_budgets = agents.has_budgets or is_limited(self.configured) or bool(agents.reservations)
        self._reservations: dict[str, dict[str, _Reservation]] = {}
        self._turns: dict[str, _TurnSpending] = {}
        for id, journaled in agents.reservations.items():
            if (query := agents[id].pending) is not None:  # the previous root ended during the query
                calls = sum(map(_is_call, journaled.released))
                self._turns[id] = _TurnSpending(query.query_id, NOTHING, len(journaled.released) - calls, calls)
                self._reservations[id] = {
                    hold: _Reservation(minimum, query.query_id, agents[id].incarnation, minimum)
                    for hold, minimum in journaled.current.items()
                }

    @property
    def root_budget(self) -> Budget:
        """The budget of all agents together. This budget consists of the configured limits and later changes.

        A change to a limit applies until the configuration has another value for this limit.
        """
        if not self._agents.root_budgets:
            return self.configured
        budget = self.configured
        for entry in self._agents.root_budgets:
            unchanged_limits = {
                name: limit
                for name, limit in entry.change.limits().items()
                if getattr(entry.configured, name) == getattr(self.configured, name)
            }
            budget = msgspec.structs.replace(budget, **unchanged_limits)
        return budget

    def change(self, change: BudgetChange) -> RootBudgetChanged | None:
        """Return the entry that records a change of the budget of all agents. Return None if `change` is empty."""
        if not change.limits():
            return None
        return RootBudgetChanged(at=self._clock(), change=change, configured=self.configured)

    def kinds_for(self, id: str | None) -> tuple[str, ...]:
        """Return the kinds with a limit for the agent `id`. None means a new agent without a parent."""
        budgets = [self.root_budget, *(agent.spec.limits for agent in self._charged_agents(self._agents.get(id)))]
        bounded = {kind for budget in budgets for kind, limit in LIMITS if getattr(budget, limit) is not None}
        return tuple(kind for kind in KINDS if kind in bounded) if bounded else ()

    def spent(self, owner: AgentRecord | None) -> BudgetAmounts:
        """Return the usage of the agent `owner` and its descendants.

        If `owner` is None, return the usage of all agents.
        """
        used = sum(map(self._unrecorded_usage, self._agents_with_usage(owner)), amounts_of(self._recorded_usage(owner)))
        worked = self._agents.worked if owner is None else owner.worked
        return msgspec.structs.replace(used, seconds=worked.seconds(self._clock()), processes=self._processes(owner))

    def reserve(self, id: str, want: ReserveBudget) -> BudgetReservationResult | None:
        """Reserve the amounts that the agent is about to use.

        Return None if the agent must wait until other reservations end. Raises BudgetExceededError if the budget is too
        small.
        """
        agent = self._agents[id]
        query_id = agent.pending.query_id if agent.pending is not None and not want.outside_turn else None
        if query_id is None and not (want.outside_turn and agent.running):
            raise ProtocolError(f"cannot reserve budget for agent {agent.spec.name!r}: it has no running turn")
        granted: dict[str, float] = {}
        why = ""
        for kind in KINDS:
            minimum, expected, limit = (getattr(each, kind) for each in (want.minimum, want.expected, want.maximum))
            granted[kind] = limit
            accounts = list(self._accounts(agent, kind)) if limit else []
            if not accounts:
                continue
            tightest = min(accounts, key=lambda account: account.left)
            smallest = min(accounts, key=lambda account: account.left_without_reservations)
            is_shared = self._is_shared(agent, tightest)
            amount = reservation_amount(
                minimum, expected, limit, tightest.left, smallest.left_without_reservations, is_shared=is_shared
            )
            if amount is None:
                return None
            if amount < minimum:
                raise BudgetExceededError(exceeded_message(smallest, minimum))
            granted[kind] = amount
            if amount < limit:
                why = reduced_message(tightest, amount)
        reserved = BudgetReservationResult(new_id(), BudgetAmounts(**granted), why)
        active = {each: hold for each, hold in self._reservations.get(id, {}).items() if _is_active(agent, hold)}
        self._remove_ended()
        self._reservations[id] = active | {
            reserved.id: _Reservation(reserved.amounts, query_id, agent.incarnation, want.minimum)
        }
        if query_id is not None and self._turn(id).query_id != query_id:
            self._turns[id] = _TurnSpending(query_id)
        return reserved

    def reservation_entry(self, id: str, reservation_id: str) -> BudgetReserved | None:
        """Return the journal entry for a new reservation. Return None if the reservation does not belong to a turn."""
        reservation = self._reservations[id][reservation_id]
        if reservation.query_id is None:
            return None
        return BudgetReserved(
            at=self._clock(), id=id, query_id=reservation.query_id, hold=reservation_id, minimum=reservation.minimum
        )

    def cancel_reservation(self, id: str, reservation_id: str) -> None:
        """Remove a reservation that was not used."""
        self._reservations[id].pop(reservation_id, None)

    def settle(self, id: str, reservation_id: str, used: BudgetAmounts) -> BudgetReleased | None:
        """End the reservation `reservation_id` and add `used` to the usage of the turn.

        Outside turns, the usage is already recorded. Return the entry to record, or None if there is nothing to record.
        """
        reservation = self._reservations.get(id, {}).pop(reservation_id, None)
        turn = self._turn(id)
        if reservation is not None and reservation.query_id == turn.query_id:
            calls = _is_call(reservation.minimum)
            self._turns[id] = _TurnSpending(
                turn.query_id, turn.spent + used, turn.responses + (not calls), turn.calls + calls
            )
        return (
            BudgetReleased(at=self._clock(), id=id, hold=reservation_id)
            if reservation is not None and reservation.query_id is not None
            else None
        )

    def with_lost_usage(self, entries: list[Entry]) -> list[Entry]:
        """Return `entries`, followed by entries for the usage of requests that were lost with their processes.

        A request costs money even if its response never arrives.
        """
        if not self._reservations:
            return entries
        ended = [
            each
            for each in entries
            if isinstance(each, QueryFinished) and each.error and each.error.type in PROCESS_ENDED_ERRORS
        ]
        lost = [(each, usage) for each in ended if (usage := self._lost_usage(each)) is not None]
        return [*entries, *(UsageRecorded(at=each.at, id=each.id, usage=usage) for each, usage in lost)]

    def low_budget_warning(self, id: str) -> str:
        """Return the warning for the agent if its budgets are nearly used up, otherwise ""."""
        accounts = (account for kind in self.kinds_for(id) for account in self._accounts(self._agents[id], kind))
        return low_budget_notice([account for account in accounts if account.spent >= LOW_SHARE * account.limit])

    def release_topics(self) -> list[Topic]:
        """Return the topics that announce the end of the turns and processes that have reservations."""
        reservations = [
            (id, reservation)
            for id in self._reservations
            for reservation in self._active_reservations(self._agents[id])
        ]
        return [
            ExitTopic(id, reservation.incarnation) if reservation.query_id is None else QueryTopic(reservation.query_id)
            for id, reservation in reservations
        ]

    def require_process(self, id: str | None, asker: str | None = None) -> None:
        """Raise BudgetExceededError unless another process may be started for the agent `id`.

        If `id` is None, check for a new agent. `asker` is the agent that is about to query the agent `id`.
        """
        for account in self._accounts(self._agents.get(id), "processes", asker):
            if account.left < 1:
                raise BudgetExceededError(exceeded_message(account, 1))

    def require_time(self, id: str, asker: str | None = None) -> None:
        """Raise BudgetExceededError unless the agent `id` has working time left.

        `asker` is the agent that is about to query the agent `id`.
        """
        if (left := self.time_left(id, asker)) is not None and left[0] <= 0:
            raise BudgetExceededError(left[1])

    def time_left(self, id: str, asker: str | None = None) -> tuple[float, str] | None:
        """Return the seconds that the agent may still work, and the error message for the time after that.

        Return None if the working time of the agent is not limited.
        """
        tightest = min(
            self._accounts(self._agents[id], "seconds", asker), key=lambda account: account.left, default=None
        )
        return None if tightest is None else (tightest.left, exhausted_message(tightest))

    def _accounts(self, user: AgentRecord | None, kind: str, asker: str | None = None) -> Iterator[BudgetAccount]:
        """Yield the accounts that are charged for `user`. If `user` is None, yield those for a new top-level agent.

        `asker` is the agent that is about to query `user`.
        """
        limit = limit_of(kind)
        for agent in self._charged_agents(user, asker):
            if (maximum := getattr(agent.spec.limits, limit)) is not None:
                yield self._account(agent, kind, maximum)
        if (maximum := getattr(self.root_budget, limit)) is not None:
            yield self._account(None, kind, maximum)

    def _charged_agents(self, user: AgentRecord | None, asker: str | None = None) -> Iterator[AgentRecord]:
        """Yield the agents that are charged for the usage of `user`, each once.

        `asker` is the agent that is about to query `user`.
        """
        if user is None:
            return
        yield from self._agents.chain(user.spec.id)
        payers = self._agents.payers(asker, user.spec.id) if asker is not None else user.payers
        yield from (agent for agent in map(self._agents.get, payers) if agent is not None)

    def _account(self, owner: AgentRecord | None, kind: str, limit: float) -> BudgetAccount:
        if kind == "seconds":
            worked = self._agents.worked if owner is None else owner.worked
            return BudgetAccount(kind, owner, limit, worked.seconds(self._clock()), 0.0)
        if kind == "processes":
            return BudgetAccount(kind, owner, limit, self._processes(owner), 0.0)
        agents = self._agents_with_usage(owner)
        spent = amounts_of(self._recorded_usage(owner))
        reserved = sum(
            getattr(reservation.amounts, kind) for agent in agents for reservation in self._active_reservations(agent)
        )
        unrecorded = sum(getattr(self._unrecorded_usage(agent), kind) for agent in agents)
        return BudgetAccount(kind, owner, limit, getattr(spent, kind) + unrecorded, reserved)

    def _recorded_usage(self, owner: AgentRecord | None) -> Usage:
        """Return the usage of finished turns of `owner`, its descendants and its peers.

        If `owner` is None, return the usage of all agents.
        """
        return self._agents.usage if owner is None else self._agents.tree_usage(owner.spec.id) + owner.peer_usage

    def _processes(self, owner: AgentRecord | None) -> int:
        """Return the number of processes that were started.

        Processes of holders do not count, because another limit applies to holders.
        """
        if owner is None:
            return self._agents.processes
        own = sum(agent.incarnation for agent in self._agents.subtree(owner.spec.id) if not agent.is_holder)
        return own + owner.peer_processes

    def _agents_with_usage(self, owner: AgentRecord | None) -> list[AgentRecord]:
        """Return the agents that are charged to `owner` and have reservations or unrecorded usage."""
        agents = [self._agents[id] for id in {*self._reservations, *self._turns}]
        return agents if owner is None else [agent for agent in agents if owner in self._charged_agents(agent)]

    def _remove_ended(self) -> None:
        """Remove the data of turns and processes that have ended."""
        for id in [id for id in self._turns if not self._is_counted(self._agents[id])]:
            del self._turns[id]
        for id in [id for id in self._reservations if not any(self._active_reservations(self._agents[id]))]:
            del self._reservations[id]

    def _is_shared(self, asker: AgentRecord, account: BudgetAccount) -> bool:
        """Return whether other agents are working on the same budget.

        Agents that are charged for the usage of `asker` do not count, because they wait for `asker`.
        """
        chain = {agent.spec.id for agent in self._charged_agents(asker)}
        return any(
            agent.spec.id not in chain and self._is_counted(agent) for agent in self._agents_with_usage(account.owner)
        )

    def _is_counted(self, agent: AgentRecord) -> bool:
        """Return whether the ledger contains usage of the agent's current turn."""
        return agent.pending is not None and self._turn(agent.spec.id).query_id == agent.pending.query_id

    def _turn(self, id: str) -> _TurnSpending:
        return self._turns.get(id, NO_TURN)

    def _unrecorded_usage(self, agent: AgentRecord) -> BudgetAmounts:
        return self._turn(agent.spec.id).spent if self._is_counted(agent) else NOTHING

    def _lost_usage(self, ended: QueryFinished) -> Usage | None:
        """Return the minimum usage of those requests of a turn that have neither ended nor been recorded.

        Return None if there are no such requests.
        """
        turn = self._turn(ended.id)
        reservations = [
            each for each in self._reservations.get(ended.id, {}).values() if each.query_id == ended.query_id
        ]
        if not reservations or turn.query_id != ended.query_id:
            return None
        responses = [each for each in reservations if not _is_call(each.minimum)][
            max(0, ended.usage.model_calls - turn.responses) :
        ]
        calls = [each for each in reservations if _is_call(each.minimum)][max(0, ended.usage.tool_calls - turn.calls) :]
        minimum = sum((each.minimum for each in (*responses, *calls)), NOTHING)
        return (
            Usage(
                input_tokens=int(minimum.tokens),
                cost_usd=minimum.usd,
                cost_known=not responses,
                model_calls=len(responses),
                tool_calls=len(calls),
                tool_seconds=minimum.tool_seconds,
            )
            if responses or calls
            else None
        )

    def _active_reservations(self, agent: AgentRecord) -> Iterator[_Reservation]:
        return (
            reservation
            for reservation in self._reservations.get(agent.spec.id, {}).values()
            if _is_active(agent, reservation)
        )


def _is_call(minimum: BudgetAmounts) -> bool:
    return bool(minimum.tool_calls or minimum.tool_seconds)


def _is_active(agent: AgentRecord, reservation: _Reservation) -> bool:
    if reservation.query_id is None:
        return agent.running and agent.incarnation == reservation.incarnation
    return agent.pending is not None and agent.pending.query_id == reservation.query_id
