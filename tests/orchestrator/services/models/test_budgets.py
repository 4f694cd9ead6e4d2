"""Budgets at work: agents that cost money, in turns, races, deaths, and lives of their root."""

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
from orch_protocol.policy.budget import BudgetAmounts, ReserveBudget, SettleBudget
from orch_protocol.policy.policy import PolicyConfig
from orch_protocol.services.registry import SERVICES
from orch_protocol.services.requests import AgentShown
from orch_worker.backends import registry
from orch_worker.session.transcript import Transcript
from orchestrator.root_double import NEST, Gate, World, nesting, opened
from paid_backend import price
from virtual_clock import passed, until, virtual


@pytest.fixture(autouse=True)
def _shop() -> Iterator[None]:
    """There is a provider that takes money."""
    registry.PROVIDERS["paid"] = registry.ProviderModule("paid_backend", "lean")
    yield
    del registry.PROVIDERS["paid"]


def paid(*items: Any) -> str:
    """Return a model that says `items`, each for a dollar or what it says."""
    return f"paid:{msgspec.json.encode(items).decode()}"


async def buy(world: World, *items: Any, **options: Any) -> AsyncSubagent:
    """Spawn an agent that costs money."""
    return await world.spawn("work", model=paid(*items), **options)


async def row(agent: AsyncSubagent) -> tuple[float, float | None]:
    """Return what the agent spent, and of what."""
    state = await agent.state()
    return state.spent.usd, state.budget.max_cost_usd


def nested(model: str, budget: BudgetConfig = BudgetConfig(), **more: Any) -> Config:  # noqa: B008
    """Return a configuration in which agents have agents, which cost money."""
    return msgspec.structs.replace(nesting(**more), model=model, budget=budget)


def results(shown: AgentShown) -> list[str]:
    """Return the texts of the results of tools, in order."""
    blocks = [block for message in shown.messages for block in message.content if isinstance(block, ToolResult)]
    return [text_of(Message("user", block.content)) for block in blocks]


def no_money_is_held(world: World) -> bool:
    return world.supervisor.budgets.holders() == []


@virtual
async def test_an_agent_stops_at_its_budget_and_goes_on_with_a_larger_one(tmp_path: Path) -> None:
    """A turn ends early and says why, the next is an error; both name the command that helps, and it does."""
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
        assert "agent 'x' and those below it spent $4.00 of $4.50" in reply.text
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
async def test_a_turn_whose_end_cannot_be_written_is_paid(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It failed behind the last response: who asks again has that much less."""

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
async def test_summaries_between_turns_are_written_by_a_model_and_paid(tmp_path: Path) -> None:
    """Of a budget as anything else: what it does not cover is said without one."""
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
async def test_what_was_spent_stays_spent(tmp_path: Path, end: str) -> None:
    """A budget is as good after the death of a process, a kill and a resume, and in another life of the root."""
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
async def test_children_spend_their_parents_money(tmp_path: Path) -> None:
    """A child stops at what is left of it, which is less than its own; the model that asked it is told to give up."""
    child = paid(*[{"text": "$2", "tool": "list_subagents"}] * 9)
    ask = {"tool": "query_subagent", "input": {"id": "2", "prompt": "go"}}
    script = [
        {"tool": "spawn_subagent", "input": {"task": "help", "tools": ["list_subagents"], "max_cost": 50}},
        ask,
        ask,
        "blocked",
    ]
    async with opened(tmp_path, config=nested(model=child)) as world:
        parent = await world.scripted(*script, tools=NEST, max_cost=6.5)
        assert (await parent.query("go")).text == "blocked"
        said = results(await parent.show())
        assert "(budget, 3 tool calls)" in said[1]
        assert "'agent-1' and those below it spent $6.00 of $6.50" in said[1]
        assert "$0.5 is left" in said[2]
        assert "Do not try again: report that you are blocked." in said[2]
        assert await row(parent) == (6.0, 6.5)
        assert await row(await world.get(2)) == (6.0, 50.0)


@virtual
async def test_racing_children_never_spend_more_than_there_is(tmp_path: Path) -> None:
    """Who comes too late waits for what the others do not take; in the end all of it is spent, and not a cent more."""
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
        answer, most, together = parent.submit("go"), 0.0, 0
        while not answer.done():
            spent, _ = await row(parent)
            most, together = max(most, spent), max(together, len(world.supervisor.budgets.holders()))
            await passed(0.1)
        assert most <= 20
        assert 20 - (await row(parent))[0] < 1
        assert together > 1
        said = results(await parent.show())[racers:]
        assert len([text for text in said if "(budget, " in text or "is left" in text]) == racers
        assert no_money_is_held(world)


@pytest.mark.parametrize("end", ["die", "cancel", "kill"])
@virtual
async def test_who_holds_money_gives_it_back(tmp_path: Path, end: str) -> None:
    """Somebody who waits for it goes on when the turn that holds it is over, however that came."""
    config = Config(budget=BudgetConfig(max_cost_usd=2.5))
    async with opened(tmp_path, config=config) as world:
        slow, waits = await buy(world, {"text": "$3", "sleep": 3000}), await buy(world, price(2))
        holding = slow.submit("go")
        await until(world.supervisor.budgets.holders)
        waiting = waits.submit("go")
        await passed(60)
        assert not waiting.done()
        if end == "die":
            world.launcher.worker(slow.id).die(-9)
        elif end == "kill":
            await slow.kill()
        else:
            await slow.cancel()
        # A request whose process is gone was made all the same: the least that it costs is gone.
        assert (await waiting).usage.cost_usd == (2.0 if end == "cancel" else 1.5)
        await asyncio.wait([holding])
        assert (await slow.state()).spent.usd == (0.0 if end == "cancel" else 1.0)
        with pytest.raises(BudgetExceededError, match="all agents together spent"):
            await waits.query("more")


@virtual
async def test_who_waits_for_money_can_be_stopped(tmp_path: Path) -> None:
    """Cancelled, it waits no more and holds nothing."""
    async with opened(tmp_path, config=Config(budget=BudgetConfig(max_cost_usd=3.0))) as world:
        slow, waits = await buy(world, {"text": "$3", "sleep": 3000}), await buy(world, price(2))
        holding = slow.submit("go")
        await until(world.supervisor.budgets.holders)
        waiting = waits.submit("go")
        await passed(60)
        await waits.cancel()
        assert (await waiting).stop_reason == "cancelled"
        assert len(world.supervisor.budgets.holders()) == 1
        await slow.cancel()
        await holding


@pytest.mark.parametrize("usd", [None, 9.0])
@virtual
async def test_what_was_spent_is_on_the_disk_before_anything_follows(tmp_path: Path, usd: float | None) -> None:
    """No loss of power makes a budget larger; without one a response waits for the next sync like all else."""
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
async def test_a_budget_is_configured(tmp_path: Path) -> None:
    """For agents without one of their own; who says what it may spend has that, in its limits or beside them."""
    config = Config(subagents=SubagentsConfig(max_cost_usd=1.5))
    async with opened(tmp_path, config=config) as world:
        told = [
            await buy(world),
            await buy(world, limits=Limits(max_turns=3)),
            await buy(world, limits=Limits(max_cost_usd=2.5)),
            await buy(world, limits=Limits(max_cost_usd=2.5), max_cost=3.5),
        ]
        assert [(await row(agent))[1] for agent in told] == [1.5, 1.5, 2.5, 3.5]


@virtual
async def test_a_limit_is_taken_away(tmp_path: Path) -> None:
    """From the next query on the agent spends as it likes, also in another life of the root; not so those below it."""
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
async def test_what_is_no_amount_is_refused(tmp_path: Path, usd: Any) -> None:
    """Where an agent is spawned, and where its limit is set anew."""
    async with opened(tmp_path) as world:
        for options in ({"max_cost": usd}, {"limits": Limits(max_cost_usd=usd)}):
            with pytest.raises(ConfigError, match="a number of dollars above 0"):
                await buy(world, **options)
        agent = await buy(world)
        if usd != math.inf:  # which takes a limit away
            with pytest.raises(ConfigError, match="a number of dollars above 0"):
                await agent.resume(max_cost=usd)
        assert len(await world.agents(all=True)) == 1


@virtual
async def test_what_has_no_known_price_has_no_budget(tmp_path: Path) -> None:
    """Refused where it would begin: at spawn, for a child, by the root's budget, and when a limit is set."""
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
async def test_a_summary_is_paid_from_the_same_budget(tmp_path: Path, usd: float, summarised: bool) -> None:
    """One that is not covered is not asked for; the archive keeps its receipt."""

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
async def test_money_is_for_agents(tmp_path: Path) -> None:
    """Nobody else puts any aside or settles it."""
    async with opened(tmp_path) as world:
        for service, params in (
            ("reserve", ReserveBudget(BudgetAmounts(), BudgetAmounts(), BudgetAmounts())),
            ("settle", SettleBudget("x", BudgetAmounts())),
        ):
            with pytest.raises(ConfigError, match="only an agent can call"):
                await call(world.supervisor, USER, SERVICES[service], params)
