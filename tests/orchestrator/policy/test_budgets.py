"""Who may spend how much: shares, chains of budgets, turns under way, and that nobody spends more than there is."""

from __future__ import annotations

import random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orch.policy.budget_rules import budget_of, format_usd, reservation_amount
from orch.policy.budgets import BudgetLedger
from orch.tree.journal.events import FinishQuery, KillRequested, RecordUsage, ResumeRequested
from orch_protocol.agent.spec import Limits
from orch_protocol.core.errors import BudgetExceededError, ConfigError, ProtocolError
from orch_protocol.core.messages import Reply, Usage
from orch_protocol.policy.budget import Budget, BudgetAmounts, BudgetChange, BudgetReservationResult, ReserveBudget
from orchestrator.tree_double import Forest


def want(least: float, enough: float, most: float, beside: bool = False) -> ReserveBudget:
    """Return a request for so many dollars."""
    return ReserveBudget(BudgetAmounts(usd=least), BudgetAmounts(usd=enough), BudgetAmounts(usd=most), beside)


WANT = want(1.0, 2.0, 8.0)


class Town:
    """Agents at work, and their budgets."""

    def __init__(self, ceiling: float | None = None) -> None:
        self.forest = Forest(allow_nested=True, max_concurrent=99)
        self.budgets = BudgetLedger(self.forest.tree.agents, Budget(max_cost_usd=ceiling), lambda: self.forest.now)

    def work(self, limit: float | None = None, parent: str | None = None) -> str:
        """Let an agent be at work, and return its id."""
        id = self.forest.spawn(parent, limits=Limits(max_cost_usd=limit))
        self.ask(id)
        return id

    def ask(self, id: str, query_id: str | None = None) -> None:
        """Let the agent be asked."""
        self.forest.ask(id, query_id or f"q-{id}")

    def finish(self, id: str, usd: float, query_id: str | None = None) -> None:
        """Let the agent answer; all of its turn cost so much."""
        query_id = query_id or f"q-{id}"
        self.forest.handle(FinishQuery(id, query_id, Reply(id, query_id, "done", usage=Usage(cost_usd=usd))))

    def reserve(self, id: str, *sums: Any) -> BudgetReservationResult:
        """Put money aside, which must be possible at once."""
        reserved = self.budgets.reserve(id, want(*sums) if sums else WANT)
        assert reserved is not None
        return reserved

    def short(self, id: str, *sums: float) -> str:
        """Return why nothing can be put aside."""
        with pytest.raises(BudgetExceededError) as raised:
            self.budgets.reserve(id, want(*sums) if sums else WANT)
        return str(raised.value)


class TestShare:
    """How much of what is left somebody gets."""

    @pytest.mark.parametrize(
        ("left", "soon", "others", "usd"),
        [
            (100, 100, False, 8),  # all that is wanted
            (5, 5, False, 5),  # what there is
            (1.5, 1.5, False, 1.5),  # less than most answers need, and nobody will give more back
            (1.5, 20, False, None),  # the same, but somebody will
            (0.5, 20, False, None),
            (10, 10, True, 5),  # half stays for the others
            (3, 3, True, 2),  # but enough is enough
            (1.5, 1.5, True, 1.5),
        ],
    )
    def test_what_somebody_gets(self, left: float, soon: float, others: bool, usd: float | None) -> None:
        """As much as is wanted, less where less is left, nothing yet where more comes back."""
        assert reservation_amount(1.0, 2.0, 8.0, left, soon, others=others) == usd

    @given(st.floats(0, 20), st.floats(0, 20), st.booleans())
    def test_nobody_waits_for_nothing(self, left: float, held: float, others: bool) -> None:
        """What is given is there; who waits can get it later; who is refused cannot."""
        usd = reservation_amount(1.0, 2.0, 8.0, left, left + held, others=others)
        if usd is None:
            assert left + held > left
            assert left + held >= 1.0
        elif usd >= 1.0:
            assert usd <= min(left, 8.0)
        else:
            assert left + held < 1.0


class TestChain:
    """Whose budget holds for whom."""

    def test_an_agent_without_a_budget_has_none(self) -> None:
        """Nobody counts what it spends."""
        town = Town()
        id = town.work()
        assert town.budgets.kinds_for(id) == town.budgets.kinds_for(None) == ()
        assert town.reserve(id).amounts.usd == 8.0

    def test_a_parents_budget_holds_for_its_children(self) -> None:
        """What is left of it bounds theirs, whatever they were given; what they spend is gone from it."""
        town = Town()
        parent = town.work(10)
        child = town.work(100, parent)
        grandchild = town.work(None, child)
        assert town.budgets.kinds_for(grandchild) == ("usd",)
        town.finish(grandchild, 9.5)
        assert "$0.5 is left: agent 'agent-1' and those below it spent $9.50 of $10.00" in town.short(child)
        assert "`orch resume 1 --max-cost USD`" in town.short(child)
        assert town.short(parent) == town.short(child)

    def test_a_childs_own_budget_bounds_it_alone(self) -> None:
        """Its parent goes on with what is left."""
        town = Town()
        parent = town.work(10)
        child = town.work(2.5, parent)
        town.finish(child, 2.5)
        town.ask(child, "again")
        assert "agent 'agent-2' and those below it spent $2.50 of $2.50" in town.short(child)
        assert town.reserve(parent).amounts.usd == 7.5

    def test_the_roots_budget_holds_for_all(self) -> None:
        """What killed agents spent is part of it."""
        town = Town(ceiling=3.0)
        assert town.budgets.kinds_for(None) == ("usd",)
        one, two = town.work(), town.work()
        town.finish(one, 2.5)
        town.forest.handle(KillRequested((one,), "the user"))
        assert "all agents together spent $2.50 of $3.00, which is budget.max_cost_usd" in town.short(two)


class TestTurns:
    """What is spent while turns are under way."""

    def test_what_is_put_aside_is_not_there_for_others(self) -> None:
        """They wait for it, and get what was not taken of it."""
        town = Town()
        parent = town.work(10)
        one, two = town.work(None, parent), town.work(None, parent)
        held = town.reserve(one, 1, 2, 9.5)
        assert town.budgets.reserve(two, WANT) is None
        assert town.budgets.holders() == [f"query:q-{one}"]
        town.budgets.settle(one, held.id, BudgetAmounts(usd=3.0))
        assert town.reserve(two).amounts.usd == 3.5  # half of what is left: the first one may come again
        assert town.budgets.spent(town.forest.tree.agents[parent]).usd == 3.0

    def test_one_agent_may_hold_several_sums(self) -> None:
        """As it does when it asks several models at once; each is settled by itself, and once."""
        town = Town()
        id = town.work(20)
        first, second = town.reserve(id), town.reserve(id)
        town.budgets.settle(id, first.id, BudgetAmounts(usd=1.0))
        town.budgets.settle(id, first.id, BudgetAmounts(usd=1.0))
        town.budgets.settle(id, "another's", BudgetAmounts(usd=1.0))
        assert town.reserve(id, 1, 11, 11).amounts.usd == 11
        town.budgets.settle(id, second.id, BudgetAmounts(usd=8.0))
        assert "spent $9.00 of $20.00" in town.short(id, 12, 12, 12)

    def test_a_turn_that_is_over_counts_by_its_record(self) -> None:
        """However it ended: nothing is put aside any more, and nothing counts twice."""
        town = Town()
        id = town.work(10)
        town.budgets.settle(id, town.reserve(id).id, BudgetAmounts(usd=3.0))
        town.reserve(id)
        town.finish(id, 3.25)
        node = town.forest.tree.agents[id]
        assert (town.budgets.spent(node).usd, town.budgets.holders()) == (3.25, [])
        town.ask(id, "again")
        assert town.reserve(id).amounts.usd == 6.75

    def test_a_process_that_dies_gives_back_what_it_held(self) -> None:
        """What its transcript tells was spent is spent."""
        town = Town()
        id = town.work(10)
        town.reserve(id)
        town.forest.gone(id, usage=Usage(cost_usd=1.5))
        town.ask(id, "again")
        town.forest.up(id)
        assert town.reserve(id, 1, 2, 100).amounts.usd == 8.5

    def test_what_is_put_aside_beside_a_turn_is_the_processs(self) -> None:
        """As for a summary: it outlives turns, counts by the record alone, and ends with its process."""
        town = Town()
        id = town.work(10)
        town.finish(id, 1.0)
        first, second = (town.reserve(id, 1, 2, 3, True) for _ in range(2))
        assert town.budgets.holders() == [f"gone:{id}:1"] * 2
        town.ask(id, "again")
        assert town.budgets.reserve(id, want(5, 5, 5)) is None
        town.budgets.settle(id, first.id, BudgetAmounts(usd=2.5))
        town.forest.handle(RecordUsage(id, Usage(cost_usd=2.5)))
        assert town.budgets.spent(town.forest.tree.agents[id]).usd == 3.5
        assert town.reserve(id, 1, 2, 100).amounts.usd == 3.5
        town.forest.gone(id)
        assert town.budgets.holders() == []
        with pytest.raises(ProtocolError, match="it has no running turn"):
            town.budgets.reserve(id, want(1, 1, 1, beside=True))
        town.budgets.settle(id, second.id, BudgetAmounts(usd=3.0))
        town.ask(id, "and again")
        assert town.reserve(id, 1, 2, 100).amounts.usd == 6.5

    def test_what_comes_too_late_changes_nothing(self) -> None:
        """Nothing is put aside for an agent that is it has no running turn, nor settled."""
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

    def test_more_may_be_spent_than_was_put_aside(self) -> None:
        """An estimate was too low: what is left is never less than nothing, and nobody waits for it."""
        town = Town()
        id = town.work(10)
        town.budgets.settle(id, town.reserve(id, 1, 2, 10).id, BudgetAmounts(usd=12.0))
        assert "$0 is left" in town.short(id)

    def test_less_than_was_wanted_comes_with_a_reason(self) -> None:
        """A response that is cut short by it can be told of."""
        town = Town()
        id = town.work(5)
        assert "its last response could cost no more than $5.00. Before it, agent" in town.reserve(id).why
        town = Town(100)
        assert town.reserve(town.work()).why == ""


def test_a_limit_can_be_set_anew() -> None:
    """For any agent, of any status, on record; what was spent before counts."""
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
def test_nobody_ever_spends_more_than_there_is(seed: int) -> None:
    """Whatever is asked in whatever order, budgets hold for as long as responses cost no more than was put aside."""
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
        for agent, most in limits.items():
            below = [node.spec.id for node in nodes.subtree(agent)]
            assert most is None or sum(spent[each] for each in below) <= most + 1e-9
            assert town.budgets.spent(nodes[agent]).usd == pytest.approx(sum(spent[each] for each in below))


@pytest.mark.parametrize("usd", [0, -1, float("nan"), float("inf"), "1", True])
def test_what_is_no_money_is_refused(usd: Any) -> None:
    """A limit is a number of dollars above nothing; not-a-number would be no limit at all."""
    with pytest.raises(ConfigError, match=r"does not do: a number of dollars above 0"):
        budget_of(usd, None)
    assert [budget_of(each, None).max_cost_usd for each in (0.5, 2, None)] == [0.5, 2, None]


@pytest.mark.parametrize(
    ("usd", "text"), [(0, "$0"), (0.000001, "$0.000001"), (0.5, "$0.5"), (1, "$1.00"), (1234.567, "$1,234.57")]
)
def test_money_is_told_to_the_millionth(usd: float, text: str) -> None:
    """Small amounts are seen, large ones are cents."""
    assert format_usd(usd) == text
