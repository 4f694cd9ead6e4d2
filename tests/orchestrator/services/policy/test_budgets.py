"""Budgets of agents that cost money: in turns, in races, after kills, and after restarts of the root."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from orch import ArchivalConfig, AsyncSubagent, Config, Limits, SubagentsConfig
from orch.policy.caller import USER
from orch.services import call
from orch_protocol.agent.config import BudgetConfig, SummaryConfig, TriggerConfig
from orch_protocol.core.errors import AgentError, BudgetExceededError, ConfigError, StoreError
from orch_protocol.core.messages import Message, ToolResult, text_of
from orch_protocol.core.taint import TaintConfig
from orch_protocol.policy.budget import BudgetAmounts
from orch_protocol.policy.policy import PolicyConfig
from orch_protocol.services.agents.status import AgentShown
from orch_protocol.services.dispatch.registry import SERVICES
from orch_protocol.services.policy.budgets import ReserveBudget, SettleBudget
from orch_worker.backends import registry
from orch_worker.session.transcript import Transcript
from orchestrator.root_double import NEST, Gate, World, nesting, opened
from paid_backend import price
from virtual_clock import passed, until, virtual


@pytest.fixture(autouse=True)
def _shop() -> Iterator[None]:
    """Register a provider whose responses cost money."""
    registry.PROVIDERS["paid"] = registry.ProviderModule("paid_backend", "lean")
    yield
    del registry.PROVIDERS["paid"]


def paid(*items: Any) -> str:
    """Return a model that answers `items`, each for one dollar or for the price in its text."""
    return f"paid:{msgspec.json.encode(items).decode()}"


async def buy(world: World, *items: Any, **options: Any) -> AsyncSubagent:
    """Spawn an agent whose model costs money."""
    return await world.spawn("work", model=paid(*items), **options)


async def row(agent: AsyncSubagent) -> tuple[float, float | None]:
    """Return what the agent spent and its limit, in dollars."""
    state = await agent.state()
    return state.spent.usd, state.budget.max_cost_usd


def nested(model: str, budget: BudgetConfig = BudgetConfig(), **more: Any) -> Config:  # noqa: B008
    """Return a configuration that permits subagents and has `model` as its default model."""
    return msgspec.structs.replace(nesting(**more), model=model, budget=budget)


def results(shown: AgentShown) -> list[str]:
    """Return the texts of the tool results, in order."""
    blocks = [block for message in shown.messages for block in message.content if isinstance(block, ToolResult)]
    return [text_of(Message("user", block.content)) for block in blocks]


def no_money_is_held(world: World) -> bool:
    return world.supervisor.budgets.release_topics() == []


@virtual
async def test_exhausted_budget_ends_the_turn_and_a_larger_one_continues(tmp_path: Path) -> None:
    """The reply states what was spent, and the error of the next query names the command that raises the limit."""
    gate = Gate()
    items = [{"text": "$2", "tool": "gate"}, {"text": "so far $2", "tool": "gate"}, "more", "and more"]
    async with opened(tmp_path) as world:
        agent = await buy(world, *items, tools=[gate.tool()], max_cost=4.5, name="x")
        answer = agent.submit("go")
        await gate.called.wait()
        assert await row(agent) == (2.0, 4.5)
        gate.open.set()
        reply = await answer
        assert (reply.stop_reason, reply.usage.cost_usd, reply.tool_calls) == ("budget", 4.0, 2)
        assert reply.text.startswith("so far $2\n\n[The turn was stopped after 2 steps: ")
        assert "agent 'x' and its descendants spent $4.00 of $4.50" in reply.text
        with pytest.raises(BudgetExceededError, match=r"\$0\.5 is left.*`orch resume 1 --max-cost USD`"):
            await agent.query("go on")
        assert await row(agent) == (4.0, 4.5)
        await agent.resume(max_cost=5.5)
        assert (await agent.query("go on")).text == "more"
        with pytest.raises(BudgetExceededError):
            await agent.query("go on")
        await world.resume("x", max_cost=7)
        assert (await agent.query("go on")).text == "and more"
        assert await row(agent) == (6.0, 7.0)
        assert no_money_is_held(world)


@virtual
async def test_turn_whose_end_cannot_be_written_is_charged(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The cost of a response counts even if the turn fails after it."""

    def full(*_: object) -> None:
        raise StoreError("no space left on the device")

    async with opened(tmp_path) as world:
        agent = await buy(world, price(2), "more", max_cost=4.5)
        monkeypatch.setattr(Transcript, "turn_end", full)
        with pytest.raises(StoreError, match="no space"):
            await agent.query("go")
        assert await row(agent) == (2.0, 4.5)
        assert no_money_is_held(world)


@virtual
async def test_summaries_between_turns_are_charged(tmp_path: Path) -> None:
    """A summary that the budget does not cover is extracted without a model, at no cost."""
    async with opened(tmp_path) as world:
        agent = await buy(world, *["x" * 4000 + "$1"] * 8, max_cost=9.5)
        for _ in range(6):
            await agent.query("go " + "y" * 4000)
        done = await agent.session.compact()
        assert (done.writer, done.usage.cost_usd) == ("model", 1.0)
        assert await row(agent) == (7.0, 9.5)
        first = (await agent.session.tree()).entries[0].id
        await agent.session.checkout(first, summarize=True)
        assert await row(agent) == (8.0, 9.5)
        await agent.query("go on")
        await agent.session.checkout(first, summarize=True)
        assert await row(agent) == (9.0, 9.5)
        assert no_money_is_held(world)


@pytest.mark.parametrize("end", ["die", "kill", "close"])
@virtual
async def test_spending_survives_restarts(tmp_path: Path, end: str) -> None:
    """The spent amount persists after a death of the process, a kill of the agent, and a restart of the root."""
    gate = Gate()
    async with opened(tmp_path, run="r") as world:
        agent = await buy(world, {"text": "$3", "tool": "gate"}, "done", tools=[gate.tool()], max_cost=3.5, name="x")
        answer = agent.submit("go")
        await gate.called.wait()
        if end == "close":
            answer.cancel()
            await passed(0)
        elif end == "die":
            world.launcher.worker(agent.id).die(-9)
        else:
            await agent.kill()
        if end != "close":
            with pytest.raises(AgentError):
                await answer
            await agent.resume()
            with pytest.raises(BudgetExceededError, match=r"\$0\.5 is left"):
                await agent.query("again")
    async with opened(tmp_path, run="r") as world:
        agent = await world.get("x")
        assert await row(agent) == (3.0, 3.5)
        with pytest.raises(BudgetExceededError, match=r"\$0\.5 is left"):
            await agent.query("again")
        await agent.resume(max_cost=9)
    async with opened(tmp_path, run="r") as world:
        assert await row(await world.get("x")) == (3.0, 9.0)


@virtual
async def test_child_spends_its_parents_budget(tmp_path: Path) -> None:
    """The result of the query tells the parent's model to stop and report that it is blocked."""
    child = paid(*[{"text": "$2", "tool": "list_subagents"}] * 9)
    ask = {"tool": "query_subagent", "input": {"id": "2", "prompt": "go"}}
    script = [
        {"tool": "spawn_subagent", "input": {"task": "help", "tools": ["list_subagents"]}},
        ask,
        ask,
        "blocked",
    ]
    async with opened(tmp_path, config=nested(model=child)) as world:
        parent = await world.scripted(*script, tools=NEST, max_cost=6.5)
        assert (await parent.query("go")).text == "blocked"
        outcomes = results(await parent.show())
        assert "(budget, 3 tool calls)" in outcomes[1]
        assert "'agent-1' and its descendants spent $6.00 of $6.50" in outcomes[1]
        assert "$0.5 is left" in outcomes[2]
        assert "Do not try again: report that you are blocked." in outcomes[2]
        assert await row(parent) == (6.0, 6.5)
        assert await row(await world.get(2)) == (6.0, None)


@virtual
async def test_racing_children_never_exceed_the_budget(tmp_path: Path) -> None:
    """Children that work at the same time spend nearly the whole budget, but no more."""
    racers = 6
    script = [{"text": "$1.25", "tool": "list_subagents", "sleep": 1}] * 9
    ask = {"tools": [{"tool": "query_subagent", "input": {"id": f"{2 + n}", "prompt": "go"}} for n in range(racers)]}
    spawn = {
        "tools": [
            {"tool": "spawn_subagent", "input": {"task": "help", "tools": ["list_subagents"]}} for _ in range(racers)
        ]
    }
    async with opened(tmp_path, config=nested(model=paid(*script))) as world:
        parent = await world.scripted(spawn, ask, "over", tools=NEST, max_cost=20)
        answer, limit, together = parent.submit("go"), 0.0, 0
        while not answer.done():
            spent, _ = await row(parent)
            limit, together = max(limit, spent), max(together, len(world.supervisor.budgets.release_topics()))
            await passed(0.1)
        assert limit <= 20
        assert 20 - (await row(parent))[0] < 1
        assert together > 1
        outcomes = results(await parent.show())[racers:]
        assert len([text for text in outcomes if "(budget, " in text or "is left" in text]) == racers
        assert no_money_is_held(world)


@pytest.mark.parametrize("end", ["die", "cancel", "kill"])
@virtual
async def test_ended_turn_releases_its_reservation_to_waiters(tmp_path: Path, end: str) -> None:
    """An agent that waits for budget continues when another agent's turn dies, is cancelled or is killed."""
    config = Config(budget=BudgetConfig(max_cost_usd=2.5))
    async with opened(tmp_path, config=config) as world:
        slow, waits = await buy(world, {"text": "$3", "sleep": 3000}), await buy(world, price(2))
        holding = slow.submit("go")
        await until(world.supervisor.budgets.release_topics)
        waiting = waits.submit("go")
        await passed(60)
        assert not waiting.done()
        if end == "die":
            world.launcher.worker(slow.id).die(-9)
        elif end == "kill":
            await slow.kill()
        else:
            await slow.cancel()
        # If the process dies, its request was sent already, so the minimum price is charged.
        assert (await waiting).usage.cost_usd == (2.0 if end == "cancel" else 1.5)
        await asyncio.wait([holding])
        assert (await slow.state()).spent.usd == (0.0 if end == "cancel" else 1.0)
        with pytest.raises(BudgetExceededError, match="all agents together spent"):
            await waits.query("more")


@virtual
async def test_cancel_ends_the_wait_for_budget(tmp_path: Path) -> None:
    """A turn that waits for budget ends when it is cancelled, and reserves nothing."""
    async with opened(tmp_path, config=Config(budget=BudgetConfig(max_cost_usd=3.0))) as world:
        slow, waits = await buy(world, {"text": "$3", "sleep": 3000}), await buy(world, price(2))
        holding = slow.submit("go")
        await until(world.supervisor.budgets.release_topics)
        waiting = waits.submit("go")
        await passed(60)
        await waits.cancel()
        assert (await waiting).stop_reason == "cancelled"
        assert len(world.supervisor.budgets.release_topics()) == 1
        await slow.cancel()
        await holding


@pytest.mark.parametrize("usd", [None, 9.0])
@virtual
async def test_spending_is_synced_before_it_has_effects(tmp_path: Path, usd: float | None) -> None:
    """With a budget, a response is synced before its tools run, so that a loss of power cannot enlarge the budget."""
    gate = Gate()
    unmarked = Config(policy=PolicyConfig(taint=TaintConfig(tools={"gate": ()})))
    async with opened(tmp_path, config=unmarked) as world:
        agent = await buy(world, {"text": "$2", "tool": "gate"}, "done", tools=[gate.tool()], max_cost=usd)
        answer = agent.submit("go")
        await gate.called.wait()
        runtime = world.launcher.worker(agent.id)._host._runtime
        assert runtime is not None
        assert bool(runtime.transcript.log.dirty) == (usd is None)
        gate.open.set()
        await answer


@virtual
async def test_configured_budget_applies_without_an_own_one(tmp_path: Path) -> None:
    """The configured limit is the default; `Limits` overrides it, and `max_cost` overrides both."""
    config = Config(subagents=SubagentsConfig(max_cost_usd=1.5))
    async with opened(tmp_path, config=config) as world:
        found = [
            await buy(world),
            await buy(world, limits=Limits(max_turns=3)),
            await buy(world, limits=Limits(max_cost_usd=2.5)),
            await buy(world, limits=Limits(max_cost_usd=2.5), max_cost=3.5),
        ]
        assert [(await row(agent))[1] for agent in found] == [1.5, 1.5, 2.5, 3.5]


@virtual
async def test_budget_limit_can_be_removed(tmp_path: Path) -> None:
    """An infinite `max_cost` removes the limit, also after a restart of the root."""
    async with World(tmp_path, run="r") as world:
        agent = await buy(world, {"loop": ["done"]}, max_cost=1.5, tools=NEST)
        await agent.query("one")
        with pytest.raises(BudgetExceededError):
            await agent.query("two")
        await agent.resume(max_cost=math.inf)
        await agent.query("two")
        assert await row(agent) == (2.0, None)
        id = agent.id
    async with World(tmp_path, run="r") as world:
        agent = await world.get(id)
        await agent.query("three")
        assert await row(agent) == (3.0, None)


@pytest.mark.parametrize("usd", [0, -1.0, math.nan, math.inf, "much"])
@virtual
async def test_invalid_budget_is_refused(tmp_path: Path, usd: Any) -> None:
    """Zero, negative and non-numeric limits are refused at the spawn and when a limit is changed."""
    async with opened(tmp_path) as world:
        for options in ({"max_cost": usd}, {"limits": Limits(max_cost_usd=usd)}):
            with pytest.raises(ConfigError, match="a number of dollars above 0"):
                await buy(world, **options)
        agent = await buy(world)
        if usd != math.inf:  # infinity removes the limit
            with pytest.raises(ConfigError, match="a number of dollars above 0"):
                await agent.resume(max_cost=usd)
        assert len(await world.agents(all=True)) == 1


@virtual
async def test_budget_on_an_unpriced_model_is_refused(tmp_path: Path) -> None:
    """The budget is refused at the spawn, for a child, through the root's budget, and when a limit is set."""
    model, keys = "openai:gpt-unheard-of", {"OPENAI_API_KEY": "k"}
    async with opened(tmp_path, keys=keys) as world:
        with pytest.raises(ConfigError, match=r"cannot set a budget for openai:gpt-unheard-of: its price is unknown"):
            await world.spawn("work", model=model, max_cost=1)
        agent = await world.spawn("work", model=model)
        with pytest.raises(ConfigError, match="cannot set a budget for"):
            await agent.resume(max_cost=1)
        await world.spawn("work", model="ollama:anything", max_cost=1)
        assert len(await world.agents()) == 2
    config = nested(model=model, budget=BudgetConfig(max_cost_usd=1.0))
    async with opened(tmp_path, keys=keys, config=config) as world:
        with pytest.raises(ConfigError, match="cannot set a budget for"):
            await world.spawn("work")
        parent = await world.scripted({"tool": "spawn_subagent", "input": {"task": "help"}}, "no", tools=NEST)
        await parent.query("go")
        assert "cannot set a budget for" in results(await parent.show())[0]


@pytest.mark.parametrize(("usd", "summarised"), [(4.5, True), (3.5, False)])
async def test_summary_without_budget_keeps_the_receipt(tmp_path: Path, usd: float, summarised: bool) -> None:
    """No summary is requested if the budget does not cover it, and the archive keeps its receipt."""

    async def look() -> str:
        """Look."""
        return "seen"

    summary = SummaryConfig(model=paid('{"outcome": "It was seen."}'))
    rules = ArchivalConfig(
        enabled=True, async_=False, profile="seed", summary=summary, trigger=TriggerConfig(tool_call_threshold=1)
    )
    async with opened(tmp_path, config=msgspec.structs.replace(nesting(), archival=rules)) as world:
        agent = await buy(world, {"text": "$2", "tool": "look"}, "seen", tools=[look], max_cost=usd)
        reply = await agent.query("go")
        assert reply.archived_to is not None
        assert ("It was seen." in text_of((await agent.show()).messages[1])) == summarised
        assert await row(agent) == (4.0 if summarised else 3.0, usd)
        assert no_money_is_held(world)


@virtual
async def test_only_agents_reserve_budget(tmp_path: Path) -> None:
    """The services `reserve` and `settle` refuse the user."""
    async with opened(tmp_path) as world:
        for service, params in (
            ("reserve", ReserveBudget(BudgetAmounts(), BudgetAmounts(), BudgetAmounts())),
            ("settle", SettleBudget("x", BudgetAmounts())),
        ):
            with pytest.raises(ConfigError, match="only an agent can call"):
                await call(world.supervisor, USER, SERVICES[service], params)
