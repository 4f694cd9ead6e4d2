"""Budgets of all kinds follow the same rules: tokens, calls, time of tools, working time and processes."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orch.policy.budget_rules import LOW_SHARE, budget_change, format_amount
from orch.policy.budgets import BudgetLedger
from orch.supervisor.timing.time_budget import TimeBudgets
from orch.tree.agents.agent_record import BusyTime
from orch.tree.interface.events import FinishQuery, ProcessExited, Recover, ResumeRequested
from orch.tree.journal.entries import RunStarted
from orch_protocol.agent.spec import Limits
from orch_protocol.core.errors import BudgetExceededError, ConfigError
from orch_protocol.core.messages import Reply, Usage
from orch_protocol.policy.budget import KINDS, Budget, BudgetAmounts, BudgetChange, amounts_of, limit_of
from orch_protocol.services.policy.budgets import ReserveBudget
from orchestrator.tree_double import Forest

RESERVED = ("usd", "tokens", "tool_seconds", "model_calls", "tool_calls")


class Land:
    """A tree of agents with budgets of any kind."""

    def __init__(self, **limits: float) -> None:
        self.forest = Forest(allow_nested=True, max_concurrent=99)
        self.budgets = BudgetLedger(self.forest.tree.agents, Budget(**limits), lambda: self.forest.now)

    def work(self, parent: str | None = None, **limits: float) -> str:
        """Spawn an agent with these limits, start a query, and return its id."""
        id = self.forest.spawn(parent, limits=Limits(**limits))
        self.forest.ask(id, f"q-{id}")
        return id

    def take(self, id: str, **amounts: float) -> BudgetAmounts:
        """Reserve the amounts, use all that was reserved, and return it."""
        wanted = BudgetAmounts(**amounts)
        reserved = self.budgets.reserve(id, ReserveBudget(wanted, wanted, wanted))
        assert reserved is not None
        self.budgets.settle(id, reserved.id, reserved.amounts)
        return reserved.amounts

    def finish(self, id: str, usage: Usage = Usage()) -> None:  # noqa: B008
        """Finish the agent's query."""
        self.forest.handle(FinishQuery(id, f"q-{id}", Reply(id, f"q-{id}", "done", usage=usage)))


@pytest.mark.parametrize("kind", RESERVED)
def test_each_kind_is_reserved_settled_and_refused(kind: str) -> None:
    """A parent's limit applies to its child. The error contains the limit, its owner and the remedy."""
    land = Land()
    parent = land.work(**{limit_of(kind): 10})
    child = land.work(parent, **{limit_of(kind): 1000})
    assert land.budgets.kinds_for(child) == (kind,)
    land.take(child, **{kind: 6})
    land.take(parent, **{kind: 4})
    assert getattr(land.budgets.spent(land.forest.tree.agents[parent]), kind) == 10
    assert getattr(land.budgets.spent(None), kind) == 10
    with pytest.raises(
        BudgetExceededError, match=r"agent 'agent-1' and its descendants.*`orch resume 1 --max-"
    ) as raised:
        land.take(child, **{kind: 1})
    assert limit_of(kind).removesuffix("_usd").replace("_", "-") in str(raised.value)


def test_reservation_of_several_kinds_is_atomic() -> None:
    """If one kind is used up, the request reserves nothing of the other kinds."""
    land = Land(max_tokens=100, max_model_calls=2)
    one, two = land.work(), land.work()
    land.take(one, tokens=10, model_calls=1)
    land.take(two, tokens=10, model_calls=1)
    with pytest.raises(
        BudgetExceededError, match="0 model calls are left: all agents together used 2 of 2 model calls"
    ):
        land.take(one, tokens=10, model_calls=1)
    assert land.budgets.release_topics() == []
    assert land.take(one, tokens=80).tokens == 80


def test_unlimited_kind_is_granted_in_full() -> None:
    """A limit of another kind does not reduce the amount."""
    land = Land(max_tool_calls=1)
    assert land.take(land.work(), tool_calls=1, tool_seconds=120).tool_seconds == 120


def test_recorded_usage_counts() -> None:
    """Cached tokens count like other tokens."""
    usage = Usage(1, 2, 4, 8, 0.5, model_calls=3, tool_calls=4, tool_seconds=1.5)
    assert amounts_of(usage) == BudgetAmounts(usd=0.5, tokens=15, tool_seconds=1.5, model_calls=3, tool_calls=4)
    assert amounts_of(usage + usage) == amounts_of(usage) + amounts_of(usage)
    land = Land(max_tokens=20)
    id = land.work()
    land.finish(id, usage)
    land.forest.ask(id, "again")
    with pytest.raises(BudgetExceededError, match="5 tokens are left"):
        land.take(id, tokens=6)


class TestTime:
    """Budgets of working time, measured by the clock."""

    def test_concurrent_work_uses_wall_time_once(self) -> None:
        """The same seconds of a parent and its child count once for the parent."""
        land = Land()
        parent = land.work(max_seconds=60)
        land.forest.now += 5
        child = land.work(parent)
        land.forest.now += 10
        land.finish(child)
        land.finish(parent)
        land.forest.now += 1000
        nodes = land.forest.tree.agents
        assert land.budgets.spent(nodes[parent]).seconds == 15
        assert land.budgets.spent(nodes[child]).seconds == 10
        assert land.budgets.spent(None).seconds == 15
        assert land.budgets.time_left(child)[0] == 45  # type: ignore[index]
        assert land.forest.refold().agents.by_id == nodes.by_id

    def test_turns_end_when_the_time_is_used_up(self) -> None:
        """A turn is ended once, when the time is used up. A raised limit delays the end."""
        land = Land()
        parent = land.work(max_seconds=60)
        child = land.work(parent, max_seconds=40)
        ended: list[tuple[str, str]] = []
        later: list[tuple[float, object]] = []
        watch = TimeBudgets(
            land.forest.tree.agents,
            land.budgets,
            lambda id, _, short: ended.append((id, short)),
            lambda seconds, act: later.append((seconds, act)),
        )
        watch.end_overdue_turns()
        assert ended == []
        assert later[-1][0] == pytest.approx(40, abs=0.01)
        land.forest.now += 40
        later[-1][1]()  # type: ignore[operator]
        assert [id for id, _ in ended] == [child]
        assert "used 40 of 40 s of work; `orch resume 2 --max-seconds" in ended[0][1]
        land.forest.handle(ResumeRequested(parent, BudgetChange(max_seconds=90)))
        land.forest.now += 20
        later[-1][1]()  # type: ignore[operator]
        assert len(ended) == 1
        stale = later[0][1]
        count = len(later)
        stale()  # type: ignore[operator]
        assert len(later) == count  # a newer check has replaced this one
        land.forest.now += 30
        later[-1][1]()  # type: ignore[operator]
        assert [id for id, _ in ended] == [child, parent]

    def test_agent_without_time_is_not_queried(self) -> None:
        """A query raises BudgetExceededError if no time is left."""
        land = Land(max_seconds=10)
        id = land.work()
        land.budgets.require_time(id)
        land.forest.now += 10
        land.finish(id)
        with pytest.raises(BudgetExceededError, match="all agents together used 10 of 10 s of work"):
            land.budgets.require_time(id)

    def test_time_between_two_roots_does_not_count(self) -> None:
        """Time between the end of a root and the start of the next one is not working time."""
        land = Land()
        id = land.work(max_seconds=60)
        land.forest.now += 10
        other = land.work()
        land.forest.now += 5000
        land.forest.handle(Recover(1))
        assert isinstance(land.forest.journal[-5], RunStarted)
        nodes = land.forest.tree.agents
        assert [land.budgets.spent(nodes[each]).seconds for each in (id, other)] == [10, 0]
        assert land.budgets.spent(None).seconds == 10

    @given(st.lists(st.tuples(st.floats(0, 9), st.booleans())))
    def test_used_time_never_exceeds_elapsed_time(self, steps: list[tuple[float, bool]]) -> None:
        """For any number of overlapping turns, the working time is at most the elapsed time."""
        worked, now = BusyTime(), 0.0
        for seconds, begins in steps:
            now += seconds
            if begins:
                worked.begin(now)
            elif worked.turns:
                worked.end(now)
            assert 0 <= worked.seconds(now) <= now + 1e-6


def test_each_process_start_counts() -> None:
    """Processes of descendants and restarted processes count for the parent's limit."""
    land = Land()
    parent = land.work(max_processes=3)
    child = land.work(parent)
    land.budgets.require_process(child)
    land.forest.handle(ProcessExited(child, 1, -9))
    land.forest.ask(child, "again")
    assert land.budgets.spent(land.forest.tree.agents[parent]).processes == 3
    for id in (parent, child):
        with pytest.raises(BudgetExceededError, match=r"used 3 of 3 processes; `orch resume 1 --max-processes N`"):
            land.budgets.require_process(id)
    land.budgets.require_process(None)


class TestLow:
    """The notice to an agent before its budget is used up."""

    @pytest.mark.parametrize("kind", RESERVED)
    def test_low_budget_is_reported_from_four_fifths(self, kind: str) -> None:
        """The notice contains the owner, the used share and the consequence."""
        land = Land()
        parent = land.work(**{limit_of(kind): 100})
        child = land.work(parent)
        land.take(child, **{kind: 79})
        assert land.budgets.low_budget_warning(child) == ""
        land.take(child, **{kind: 1})
        found = land.budgets.low_budget_warning(child)
        assert found.startswith("[Budget: agent 'agent-1' and its descendants used 80 % of the limit, ")
        assert "your turn ends. Do what matters most now" in found
        assert land.budgets.low_budget_warning(parent) == found

    def test_unlimited_kinds_are_never_reported_low(self) -> None:
        """No amount of used tokens causes a notice."""
        land = Land()
        id = land.work()
        land.take(id, tokens=10**9)
        assert land.budgets.low_budget_warning(id) == ""
        assert LOW_SHARE == 0.8


class TestAll:
    """Changes to the budget of all agents while they work."""

    def change(self, land: Land, **limits: float | None) -> None:
        """Change the limits of the run, and record the change."""
        entry = land.budgets.change(BudgetChange(**limits))  # type: ignore[arg-type]
        assert entry is not None
        land.forest.journal.append(entry)
        land.forest.tree.apply([entry])

    def test_changed_run_limit_applies_at_once_and_is_recorded(self) -> None:
        """Omitted limits stay, and None removes a limit."""
        land = Land(max_tokens=10, max_model_calls=1)
        id = land.work()
        land.take(id, tokens=10, model_calls=1)
        self.change(land, max_tokens=30)
        assert land.take(id, tokens=20).tokens == 20
        with pytest.raises(
            BudgetExceededError, match=r"which is budget\.max_model_calls; `orch budget --max-model-calls"
        ):
            land.take(id, model_calls=1)
        self.change(land, max_model_calls=None)
        land.take(id, model_calls=99)
        again = BudgetLedger(
            land.forest.refold().agents, Budget(max_tokens=10, max_model_calls=1), lambda: land.forest.now
        )
        assert again.root_budget == land.budgets.root_budget == Budget(max_tokens=30)
        assert land.budgets.change(BudgetChange()) is None

    def test_changed_configuration_overrides_recorded_limits(self) -> None:
        """A limit whose value in the configuration has changed overrides the recorded limit."""
        land = Land(max_tokens=10, max_tool_calls=5)
        self.change(land, max_tokens=30, max_tool_calls=50)
        later = BudgetLedger(
            land.forest.refold().agents, Budget(max_tokens=20, max_tool_calls=5), lambda: land.forest.now
        )
        assert later.root_budget == Budget(max_tokens=20, max_tool_calls=50)


@pytest.mark.parametrize("kind", RESERVED)
@pytest.mark.parametrize("seed", range(4))
def test_racing_agents_never_exceed_a_budget(kind: str, seed: int) -> None:
    """Together, the agents can use the whole budget."""
    luck = random.Random(seed)
    land = Land(**{limit_of(kind): 100})
    ids = [land.work() for _ in range(50)]
    held: dict[str, tuple[str, float]] = {}
    one = BudgetAmounts(**{kind: 1})
    used = 0.0
    while ids:
        id = luck.choice(ids)
        if id in held:
            hold, amount = held.pop(id)
            land.budgets.settle(id, hold, BudgetAmounts(**{kind: amount}))
            used += amount
        else:
            try:
                reserved = land.budgets.reserve(id, ReserveBudget(one, one, one))
            except BudgetExceededError:
                ids.remove(id)
                continue
            if reserved is not None:
                held[id] = (reserved.id, getattr(reserved.amounts, kind))
        assert used + sum(amount for _, amount in held.values()) <= 100
    assert used == 100


def test_amounts_are_formatted_with_units() -> None:
    """The unit has a singular and a plural."""
    listed = [format_amount(kind, 1) for kind in KINDS]
    assert listed == ["$1.00", "1 token", "1 s of work", "1 s of tools", "1 model call", "1 call of tools", "1 process"]
    assert format_amount("tokens", 12345.0) == "12,345 tokens"
    assert format_amount("seconds", 1.25) == "1.2 s of work"


def test_limits_set_by_a_program_are_validated() -> None:
    """Infinity removes a limit, omitted limits stay, and the error names an invalid limit."""
    assert budget_change(None, None) == BudgetChange()
    assert budget_change(2.5, Budget(max_tokens=5)).limits() == {"max_cost_usd": 2.5, "max_tokens": 5}
    endless = float("inf")
    assert budget_change(endless, Budget(max_seconds=endless)).limits() == {"max_cost_usd": None, "max_seconds": None}
    for limits, what in (({"max_tokens": 1.5}, "a whole number"), ({"max_seconds": -1}, "a number")):
        with pytest.raises(ConfigError, match=rf"{next(iter(limits))} = .* is invalid: use {what} above 0"):
            budget_change(None, Budget(**limits))


class TestCutOff:
    """Requests that a process had started and not recorded when it ended."""

    def end(self, land: Land, id: str, usage: Usage = Usage()) -> Usage:  # noqa: B008
        """End the process with the recorded usage. Return the total usage of the agent."""
        decision = land.forest.tree.decide(ProcessExited(id, 1, -9, usage=usage), land.forest.now)
        land.forest.tree.apply(land.budgets.with_lost_usage(decision.entries))
        return land.forest.tree.agents[id].usage

    def hold(self, land: Land, id: str, minimum: BudgetAmounts, limit: BudgetAmounts) -> str:
        """Reserve an amount, and return the id of the reservation."""
        reserved = land.budgets.reserve(id, ReserveBudget(minimum, minimum, limit))
        assert reserved is not None
        return reserved.id

    def test_interrupted_request_costs_its_minimum(self) -> None:
        """Each request that was started when the process ended costs its reserved minimum."""
        land = Land(max_cost_usd=10, max_model_calls=5)
        id = land.work()
        self.hold(land, id, BudgetAmounts(usd=1, model_calls=1), BudgetAmounts(usd=8, model_calls=1))
        assert self.end(land, id) == Usage(cost_usd=1, cost_known=False, model_calls=1)
        assert land.budgets.spent(None).model_calls == 1

    def test_next_root_charges_reserved_requests_from_the_journal(self) -> None:
        """A reservation is recorded before its use, so the next root charges the minimum of each started request."""
        land = Land(max_cost_usd=10, max_model_calls=5)
        id = land.work()
        one = BudgetAmounts(usd=1, model_calls=1)
        for settled in (True, False):
            hold = self.hold(land, id, one, BudgetAmounts(usd=3, model_calls=1))
            entries = [
                land.budgets.reservation_entry(id, hold),
                land.budgets.settle(id, hold, one) if settled else None,
            ]
            land.forest.write([entry for entry in entries if entry is not None])
        again = land.forest.refold()
        budgets = BudgetLedger(again.agents, Budget(max_cost_usd=10, max_model_calls=5), lambda: land.forest.now)
        used = Usage(cost_usd=1, model_calls=1)
        decision = again.decide(Recover(1, {}, {f"q-{id}": used}), land.forest.now)
        again.apply(budgets.with_lost_usage(decision.entries))
        assert again.agents[id].usage == Usage(cost_usd=2, cost_known=False, model_calls=2)
        assert again.agents.reservations == {}

    def test_recorded_usage_counts_once(self) -> None:
        """Usage in the session file counts even if the process did not settle its reservation."""
        land = Land(max_cost_usd=10)
        id = land.work()
        one = BudgetAmounts(usd=1)
        land.budgets.settle(id, self.hold(land, id, one, one), one)
        self.hold(land, id, one, one)
        used = Usage(cost_usd=2, model_calls=2)
        assert self.end(land, id, used) == used

    def test_started_call_counts(self) -> None:
        """If one of two started calls is recorded, the other one costs its minimum."""
        land = Land(max_tool_calls=10, max_tool_seconds=100)
        id = land.work()
        for _ in range(2):
            self.hold(
                land, id, BudgetAmounts(tool_calls=1, tool_seconds=1), BudgetAmounts(tool_calls=1, tool_seconds=30)
            )
        used = Usage(tool_calls=1, tool_seconds=3)
        assert self.end(land, id, used) == Usage(tool_calls=2, tool_seconds=4)

    def test_nothing_is_charged_without_a_reservation(self) -> None:
        """A process without a reservation is not charged, and a turn that finished costs only its recorded usage."""
        land = Land(max_model_calls=9)
        idle, done = land.work(), land.work()
        assert self.end(land, idle) == Usage()
        self.hold(land, done, BudgetAmounts(model_calls=1), BudgetAmounts(model_calls=1))
        decision = land.forest.tree.decide(
            FinishQuery(done, f"q-{done}", Reply(done, f"q-{done}", "x")), land.forest.now
        )
        assert land.budgets.with_lost_usage(decision.entries) == decision.entries
