"""Budgets in dollars: shares, chains of budgets and reservations. Spending never exceeds a budget."""

from __future__ import annotations

import random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orch.policy.budget_rules import budget_of, format_usd, reservation_amount
from orch.policy.budgets import BudgetLedger
from orch.tree.interface.events import FinishQuery, KillRequested, RecordUsage, ResumeRequested
from orch.tree.interface.topics import ExitTopic, QueryTopic
from orch_protocol.agent.spec import Limits
from orch_protocol.core.errors import BudgetExceededError, ConfigError, ProtocolError
from orch_protocol.core.messages import Reply, Usage
from orch_protocol.policy.budget import Budget, BudgetAmounts, BudgetChange
from orch_protocol.services.policy.budgets import BudgetReservationResult, ReserveBudget
from orchestrator.tree_double import Forest


def want(minimum: float, expected: float, limit: float, beside: bool = False) -> ReserveBudget:
    """Return a request for a reservation of dollars."""
    return ReserveBudget(BudgetAmounts(usd=minimum), BudgetAmounts(usd=expected), BudgetAmounts(usd=limit), beside)


WANT = want(1.0, 2.0, 8.0)


class Town:
    """A tree of agents with budgets in dollars."""

    def __init__(self, ceiling: float | None = None) -> None:
        self.forest = Forest(allow_nested=True, max_concurrent=99)
        self.budgets = BudgetLedger(self.forest.tree.agents, Budget(max_cost_usd=ceiling), lambda: self.forest.now)

    def work(self, limit: float | None = None, parent: str | None = None) -> str:
        """Spawn an agent, start a query, and return its id."""
        id = self.forest.spawn(parent, limits=Limits(max_cost_usd=limit))
        self.ask(id)
        return id

    def ask(self, id: str, query_id: str | None = None) -> None:
        """Start a query of the agent."""
        self.forest.ask(id, query_id or f"q-{id}")

    def finish(self, id: str, usd: float, query_id: str | None = None) -> None:
        """Finish the agent's query at a total cost of `usd`."""
        query_id = query_id or f"q-{id}"
        self.forest.handle(FinishQuery(id, query_id, Reply(id, query_id, "done", usage=Usage(cost_usd=usd))))

    def reserve(self, id: str, *sums: Any) -> BudgetReservationResult:
        """Reserve an amount that is available at once."""
        reserved = self.budgets.reserve(id, want(*sums) if sums else WANT)
        assert reserved is not None
        return reserved

    def short(self, id: str, *sums: float) -> str:
        """Return the error message of a refused reservation."""
        with pytest.raises(BudgetExceededError) as raised:
            self.budgets.reserve(id, want(*sums) if sums else WANT)
        return str(raised.value)


class TestShare:
    """The share of the remaining budget that a request gets."""

    @pytest.mark.parametrize(
        ("left", "soon", "others", "usd"),
        [
            (100, 100, False, 8),  # all that is wanted
            (5, 5, False, 5),  # all that is left
            (1.5, 1.5, False, 1.5),  # less than most answers need, but no reservation will return more
            (1.5, 20, False, None),  # the same, but a reservation can return more
            (0.5, 20, False, None),
            (10, 10, True, 5),  # half stays for the other agents
            (3, 3, True, 2),  # but at least the expected amount is reserved
            (1.5, 1.5, True, 1.5),
        ],
    )
    def test_share_is_the_wanted_or_remaining_amount(
        self, left: float, soon: float, others: bool, usd: float | None
    ) -> None:
        """The result is None (wait) while enough of the reserved amounts can return."""
        assert reservation_amount(1.0, 2.0, 8.0, left, soon, is_shared=others) == usd

    @given(st.floats(0, 20), st.floats(0, 20), st.booleans())
    def test_waiting_is_only_for_amounts_that_can_return(self, left: float, held: float, others: bool) -> None:
        """A request waits only if returned reservations can make it possible."""
        usd = reservation_amount(1.0, 2.0, 8.0, left, left + held, is_shared=others)
        if usd is None:
            assert left + held > left
            assert left + held >= 1.0
        elif usd >= 1.0:
            assert usd <= min(left, 8.0)
        else:
            assert left + held < 1.0


class TestChain:
    """Which budgets limit which agents."""

    def test_agent_without_a_budget_is_not_counted(self) -> None:
        """An agent without a limit gets the whole amount."""
        town = Town()
        id = town.work()
        assert town.budgets.kinds_for(id) == town.budgets.kinds_for(None) == ()
        assert town.reserve(id).amounts.usd == 8.0

    def test_parent_budget_limits_its_children(self) -> None:
        """The limit applies even if a child has a higher limit. Spending of descendants reduces it."""
        town = Town()
        parent = town.work(10)
        child = town.work(100, parent)
        grandchild = town.work(None, child)
        assert town.budgets.kinds_for(grandchild) == ("usd",)
        town.finish(grandchild, 9.5)
        assert "$0.5 is left: agent 'agent-1' and its descendants spent $9.50 of $10.00" in town.short(child)
        assert "`orch resume 1 --max-cost USD`" in town.short(child)
        assert town.short(parent) == town.short(child)

    def test_child_budget_limits_the_child_only(self) -> None:
        """The parent continues with the rest of its own budget."""
        town = Town()
        parent = town.work(10)
        child = town.work(2.5, parent)
        town.finish(child, 2.5)
        town.ask(child, "again")
        assert "agent 'agent-2' and its descendants spent $2.50 of $2.50" in town.short(child)
        assert town.reserve(parent).amounts.usd == 7.5

    def test_run_budget_covers_killed_agents(self) -> None:
        """The spending of killed agents stays part of the budget."""
        town = Town(ceiling=3.0)
        assert town.budgets.kinds_for(None) == ("usd",)
        one, two = town.work(), town.work()
        town.finish(one, 2.5)
        town.forest.handle(KillRequested((one,), "the user"))
        assert "all agents together spent $2.50 of $3.00, which is budget.max_cost_usd" in town.short(two)


class TestTurns:
    """Reservations and settlements during turns."""

    def test_reserved_amount_is_unavailable_to_others(self) -> None:
        """Another agent waits until a reservation returns."""
        town = Town()
        parent = town.work(10)
        one, two = town.work(None, parent), town.work(None, parent)
        held = town.reserve(one, 1, 2, 9.5)
        assert town.budgets.reserve(two, WANT) is None
        assert town.budgets.release_topics() == [QueryTopic(f"q-{one}")]
        town.budgets.settle(one, held.id, BudgetAmounts(usd=3.0))
        assert town.reserve(two).amounts.usd == 3.5  # half of what is left, because the first agent may ask again
        assert town.budgets.spent(town.forest.tree.agents[parent]).usd == 3.0

    def test_agent_may_hold_several_reservations(self) -> None:
        """Settling a reservation again or settling an unknown one has no effect."""
        town = Town()
        id = town.work(20)
        first, second = town.reserve(id), town.reserve(id)
        town.budgets.settle(id, first.id, BudgetAmounts(usd=1.0))
        town.budgets.settle(id, first.id, BudgetAmounts(usd=1.0))
        town.budgets.settle(id, "another's", BudgetAmounts(usd=1.0))
        assert town.reserve(id, 1, 11, 11).amounts.usd == 11
        town.budgets.settle(id, second.id, BudgetAmounts(usd=8.0))
        assert "spent $9.00 of $20.00" in town.short(id, 12, 12, 12)

    def test_finished_turn_counts_by_its_record(self) -> None:
        """The recorded usage replaces the settled amounts, and open reservations are released."""
        town = Town()
        id = town.work(10)
        town.budgets.settle(id, town.reserve(id).id, BudgetAmounts(usd=3.0))
        town.reserve(id)
        town.finish(id, 3.25)
        node = town.forest.tree.agents[id]
        assert (town.budgets.spent(node).usd, town.budgets.release_topics()) == (3.25, [])
        town.ask(id, "again")
        assert town.reserve(id).amounts.usd == 6.75

    def test_dead_process_releases_its_reservations(self) -> None:
        """The recorded usage of the process stays."""
        town = Town()
        id = town.work(10)
        town.reserve(id)
        town.forest.gone(id, usage=Usage(cost_usd=1.5))
        town.ask(id, "again")
        town.forest.up(id)
        assert town.reserve(id, 1, 2, 100).amounts.usd == 8.5

    def test_reservation_outside_a_turn_belongs_to_the_process(self) -> None:
        """A reservation for a summary between turns ends with the process."""
        town = Town()
        id = town.work(10)
        town.finish(id, 1.0)
        first, second = (town.reserve(id, 1, 2, 3, True) for _ in range(2))
        assert town.budgets.release_topics() == [ExitTopic(id, 1)] * 2
        town.ask(id, "again")
        assert town.budgets.reserve(id, want(5, 5, 5)) is None
        town.budgets.settle(id, first.id, BudgetAmounts(usd=2.5))
        town.forest.handle(RecordUsage(id, Usage(cost_usd=2.5)))
        assert town.budgets.spent(town.forest.tree.agents[id]).usd == 3.5
        assert town.reserve(id, 1, 2, 100).amounts.usd == 3.5
        town.forest.gone(id)
        assert town.budgets.release_topics() == []
        with pytest.raises(ProtocolError, match="it has no running turn"):
            town.budgets.reserve(id, want(1, 1, 1, beside=True))
        town.budgets.settle(id, second.id, BudgetAmounts(usd=3.0))
        town.ask(id, "and again")
        assert town.reserve(id, 1, 2, 100).amounts.usd == 6.5

    def test_late_reservations_are_refused_and_late_settlements_ignored(self) -> None:
        """Without a running turn, a reservation raises ProtocolError and a settlement has no effect."""
        town = Town()
        id = town.work(10)
        held = town.reserve(id)
        town.finish(id, 1.0)
        town.budgets.settle(id, held.id, BudgetAmounts(usd=5.0))
        with pytest.raises(ProtocolError, match="it has no running turn"):
            town.budgets.reserve(id, WANT)
        town.ask(id, "again")
        town.budgets.settle(id, held.id, BudgetAmounts(usd=5.0))
        assert town.reserve(id, 1, 2, 100).amounts.usd == 9.0

    def test_settlement_above_the_reservation_is_possible(self) -> None:
        """The remainder never becomes negative, and no request waits."""
        town = Town()
        id = town.work(10)
        town.budgets.settle(id, town.reserve(id, 1, 2, 10).id, BudgetAmounts(usd=12.0))
        assert "$0 is left" in town.short(id)

    def test_reduced_reservation_states_the_reason(self) -> None:
        """The reason can explain a truncated response."""
        town = Town()
        id = town.work(5)
        assert "the last response was limited to $5.00. Before that response, agent" in town.reserve(id).limit_reason
        town = Town(100)
        assert town.reserve(town.work()).limit_reason == ""


def test_limit_can_be_changed_for_any_agent() -> None:
    """Earlier spending counts against the new limit."""
    town = Town()
    id = town.work(2)
    town.finish(id, 1.5)
    town.ask(id, "more")
    town.short(id)
    town.forest.handle(ResumeRequested(id, BudgetChange(max_cost_usd=5.0)))
    assert town.reserve(id).amounts.usd == 3.5
    assert town.forest.status(id) == "busy"
    town.forest.handle(KillRequested((id,), "the user"))
    town.forest.gone(id)
    town.forest.handle(ResumeRequested(id, BudgetChange(max_cost_usd=6.0)))
    assert town.forest.status(id) == "cold"
    folded = town.forest.refold().agents
    assert folded.by_id == town.forest.tree.agents.by_id
    assert folded[id].spec.limits.max_cost_usd == 6.0


@pytest.mark.parametrize("seed", range(20))
def test_spending_never_exceeds_reserved_budgets(seed: int) -> None:
    """In any order of reservations and settlements, each subtree stays within its limit."""
    luck = random.Random(seed)
    town = Town(ceiling=60.0)
    limits: dict[str, float | None] = {}
    for number in range(8):
        parent = luck.choice([None, *limits]) if number else None
        if parent is not None and town.forest.tree.agents[parent].spec.depth >= 3:
            parent = None
        limit = luck.choice([None, luck.uniform(1, 40)])
        limits[town.work(limit, parent)] = limit
    held: dict[str, Any] = {}
    spent = dict.fromkeys(limits, 0.0)
    for _ in range(300):
        id = luck.choice(list(limits))
        if id in held:
            usd = luck.uniform(0, held[id].amounts.usd)
            town.budgets.settle(id, held.pop(id).id, BudgetAmounts(usd=usd))
            spent[id] += usd
        else:
            try:
                reserved = town.budgets.reserve(id, WANT)
            except BudgetExceededError:
                continue
            if reserved is not None:
                held[id] = reserved
            else:
                assert held
        nodes = town.forest.tree.agents
        assert sum(spent.values()) <= 60.0 + 1e-9
        for agent, maximum in limits.items():
            below = [node.spec.id for node in nodes.subtree(agent)]
            assert maximum is None or sum(spent[each] for each in below) <= maximum + 1e-9
            assert town.budgets.spent(nodes[agent]).usd == pytest.approx(sum(spent[each] for each in below))


@pytest.mark.parametrize("usd", [0, -1, float("nan"), float("inf"), "1", True])
def test_invalid_money_is_refused(usd: Any) -> None:
    """NaN is refused, because a comparison with NaN would never stop the agent."""
    with pytest.raises(ConfigError, match=r"is invalid: use a number of dollars above 0"):
        budget_of(usd, None)
    assert [budget_of(each, None).max_cost_usd for each in (0.5, 2, None)] == [0.5, 2, None]


@pytest.mark.parametrize(
    ("usd", "text"), [(0, "$0"), (0.000001, "$0.000001"), (0.5, "$0.5"), (1, "$1.00"), (1234.567, "$1,234.57")]
)
def test_money_is_formatted_to_the_millionth(usd: float, text: str) -> None:
    """Small amounts have up to six decimals, and amounts from one dollar have cents."""
    assert format_usd(usd) == text
