"""Budgets of every kind with real processes: parallel agents, used-up budgets, kills, and raised limits."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from pathlib import Path
from typing import Any

import pytest

from integration.command_shell import Shell
from orch import AsyncOrchestrator, AsyncSubagent, Budget, Config, ScriptedBackend, SubagentsConfig
from orch.policy.caller import Caller
from orch.services import HANDLERS
from orch.services.policy import budgets
from orch_protocol.agent.config import BudgetConfig
from orch_protocol.core.errors import BudgetExceededError, OrchError
from orch_protocol.core.messages import Reply
from virtual_clock import until

CALL = {"loop": [{"tool": "read_file", "input": {"path": "note"}}]}


async def worker(o: AsyncOrchestrator, *items: Any, **options: Any) -> AsyncSubagent:
    """Spawn an agent with the script `items`."""
    return await o.spawn("work", backend=ScriptedBackend(items), tools=["read_file", "bash"], **options)


async def test_fifty_processes_never_exceed_a_shared_limit(home: Path) -> None:
    """The agents make exactly as many model calls as the limit allows. Each query ends at the limit or is refused."""
    config = Config(subagents=SubagentsConfig(max_concurrent=50), budget=BudgetConfig(max_model_calls=120))
    async with AsyncOrchestrator(config=config, home=home) as o:
        agents = [await worker(o, CALL) for _ in range(50)]
        ends = await asyncio.gather(*(agent.query("go") for agent in agents), return_exceptions=True)
        spent = (await o.budget.show()).spent
        rows = await o.agents()
    assert spent.model_calls == 120 == sum(row.usage.model_calls for row in rows)
    assert {end.stop_reason if isinstance(end, Reply) else type(end) for end in ends} <= {"budget", BudgetExceededError}


async def test_turn_ends_when_its_working_time_is_used_up(home: Path) -> None:
    """A lower limit ends a turn also during a tool call, and more time lets the agent continue."""
    async with AsyncOrchestrator(home=home) as o:
        sleep = {"text": "so far", "tool": "bash", "input": {"command": "sleep 600"}}
        agent = await worker(o, sleep, "done", budget=Budget(max_seconds=600))
        going = agent.submit("go")
        await until(lambda: "bash" in str(o.supervisor.activity.get(agent.id)), 30)
        await agent.resume(budget=Budget(max_seconds=0.001))
        reply = await going
        assert (reply.stop_reason, reply.unfinished) == ("budget", ("bash",))
        assert reply.text.startswith("so far\n\n[The turn was stopped after 1 steps: its budget is used up: agent")
        assert "of 0.001 s of work; `orch resume 1 --max-seconds" in reply.text
        with pytest.raises(BudgetExceededError, match=r"of 0\.001 s of work"):
            await agent.query("go on")
        await agent.resume(budget=Budget(max_seconds=600))
        assert (await agent.query("go on")).text == "done"


async def test_run_limit_is_raised_while_agents_work(home: Path) -> None:
    """The watcher gets one warning before the end of the budget, and a higher limit lets the agent continue."""
    async with AsyncOrchestrator(config=Config(budget=BudgetConfig(max_tool_calls=5)), home=home) as o:
        agent = await worker(o, *[{"tool": "read_file", "input": {"path": "note"}}] * 5, CALL)
        collected: list[str] = []
        reply = await agent.query(
            "go", on_event=lambda event: collected.append(event.text) if event.kind == "budget" else None
        )
        assert (reply.stop_reason, reply.tool_calls) == ("budget", 5)
        assert "`orch budget --max-tool-calls N` sets another limit" in reply.text
        assert len(collected) == 1
        assert "all agents together used 80 % of the limit, 4 of 5 calls of tools" in collected[0]
        shown = await o.budget.set(budget=Budget(max_tool_calls=8))
        assert (shown.budget.max_tool_calls, shown.configured.max_tool_calls, shown.spent.tool_calls) == (8, 5, 5)
        assert (await agent.query("go on")).tool_calls == 3


async def test_worker_killed_during_a_settlement_counts_once(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The calls of the killed worker count once, also for the next root, and its reservation is released."""
    settle, kills = budgets.settle, []

    async def deadly(root: Any, caller: Caller, params: Any) -> Any:
        if len(kills) == 0 and params.amounts.tool_calls:
            kills.append(caller.require_agent(root.tree.agents).pid)
            os.kill(kills[0], signal.SIGKILL)
        return await settle(root, caller, params)

    monkeypatch.setitem(HANDLERS, "settle", deadly)
    budget = Budget(max_tool_calls=4, max_tool_seconds=60, max_model_calls=50)
    async with AsyncOrchestrator(run="r", home=home) as o:
        agent = await worker(o, CALL, name="x", budget=budget)
        with pytest.raises(OrchError):
            await agent.query("go")
        await until(lambda: o.supervisor.tree.agents[agent.id].status == "died", 30)
        spent = (await agent.state()).spent
        assert (spent.tool_calls, spent.model_calls) == (1, 1)
        assert o.supervisor.budgets.release_topics() == []
        assert (await agent.query("go on")).tool_calls == 3
    async with AsyncOrchestrator(run="r", home=home) as o:
        spent = (await (await o.get("x")).state()).spent
        assert (spent.tool_calls, spent.processes) == (4, 2)


SUICIDAL = """
import os, signal, sys
from orch import Budget, Orchestrator, ScriptedBackend
from orch.services import HANDLERS

verb, amounts = sys.argv[2], sys.argv[3]

async def deadly(root, caller, params):
    spent, done = root.budgets.spent(None), None
    last = getattr(params, amounts).model_calls and spent.tool_calls >= 2
    if last and verb == "reserve":
        done = await act(root, caller, params)
    if last:
        os.kill(os.getpid(), signal.SIGKILL)
    return done or await act(root, caller, params)

act, HANDLERS[verb] = HANDLERS[verb], deadly
with Orchestrator(run="r", home=sys.argv[1]) as o:
    call = {"loop": [{"tool": "read_file", "input": {"path": "note"}}]}
    budget = Budget(max_tool_calls=4, max_model_calls=50)
    o.budget.set(budget=Budget(max_processes=9))
    o.spawn("work", backend=ScriptedBackend([call]), tools=["read_file"], name="x", budget=budget).query("go")
"""


@pytest.mark.parametrize(("verb", "amounts"), [("settle", "amounts"), ("reserve", "minimum")])
async def test_root_killed_during_a_settlement_counts_once(home: Path, verb: str, amounts: str) -> None:
    """The next root takes usage per kind from the transcript, and the changed run limit from the journal.

    An amount that was reserved before a request counts, because the request may have been made.
    """
    root = await asyncio.create_subprocess_exec(sys.executable, "-c", SUICIDAL, str(home), verb, amounts)
    assert await asyncio.wait_for(root.wait(), 60) == -signal.SIGKILL
    async with AsyncOrchestrator(run="r", home=home) as o:
        agent = await o.get("x")
        spent = (await agent.state()).spent
        assert (spent.tool_calls, spent.model_calls) == (2, 3)
        assert (await o.budget.show()).budget == Budget(max_processes=9)
        assert (await agent.query("go on")).tool_calls == 2
        with pytest.raises(BudgetExceededError, match="used 9 of 9 processes"):
            await asyncio.gather(*(worker(o, "hi") for _ in range(8)))


def test_budgets_are_set_and_shown_by_commands(shell: Shell) -> None:
    """Flags set an agent's budget, `orch budget` sets the run's budget, and a used-up budget exits with 5."""
    script = shell.script(CALL)
    spawned = shell.run(
        "spawn", "Work", "--name", "x", "--script", script, "--tools", "read_file", "--max-tool-calls", "2"
    )
    assert spawned.returncode == 0
    reply = shell.data("query", "x", "Go", code=5)
    assert (reply["stop_reason"], reply["tool_calls"]) == ("budget", 2)
    [row] = shell.data("list")
    assert (row["budget"], row["spent"]["tool_calls"]) == ({"max_tool_calls": 2}, 2)
    assert "2 of 2 tool calls used" in shell.run("show", "x").stdout.decode()
    shell.run("budget", "--max-model-calls", "4")
    assert shell.data("query", "x", "Go on", code=5)["stop_reason"] == "budget"
    assert "which is budget.max_model_calls" in shell.run("query", "x", "Go on", code=5).stderr.decode()
    output = shell.run("budget").stdout.decode()
    assert "4 of 4 model calls, changed by the user" in output
    shell.run("budget", "--max-model-calls", "none")
    assert shell.data("budget")["budget"] == {}
    shell.run("resume", "x", "--max-tool-calls", "3")
    assert shell.data("query", "x", "Go on", code=5)["tool_calls"] == 1
