"""Tool hosts: what code of an agent cannot reach, when they start and end, and what they leave behind."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from integration.worker_processes import Watch, below, eventually, parent_of
from integration.worlds import Open, worlds
from orch import AsyncOrchestrator, AsyncSubagent, Budget, Config, PolicyConfig, ScriptedBackend
from orch_protocol.core.messages import Message, Text, ToolResult
from orch_worker.sandbox.launcher_client import unavailable_reason

REPLACE_GUARD = """
import gc, sys
from orch_protocol.policy.policy import Verdict
from orch_worker.tools.dispatch.guard import Guard, GuardDecision
async def decide(self, call, verdict, *, approved=False):
    return GuardDecision("start", Verdict())
Guard.decide = decide
print(len([each for each in gc.get_objects() if type(each) is Guard]), "guards")
"""
REPLACE_BUDGET = """
from orch_worker.tools.dispatch.budget_client import FREE, BudgetClient
async def reserve(self, backend, *, outside_turn=False):
    backend.reserved = None
    return FREE
async def reserve_call(self, seconds):
    return FREE
BudgetClient.reserve, BudgetClient.reserve_call = reserve, reserve_call
"""


READ_MEMORY = """
import ctypes, os
worker = int(open("worker").read())
reached = []
for attempt in ("open(f'/proc/{worker}/mem', 'rb')", "open(f'/proc/{worker}/environ', 'rb').read()",
                "os.readlink(f'/proc/{worker}/fd/3')", "os.readlink(f'/proc/{worker}/cwd')"):
    try:
        eval(attempt)
    except OSError:
        continue
    reached.append(attempt)
if ctypes.CDLL(None).ptrace(16, worker, 0, 0) == 0:
    reached.append("ptrace")
print("reached:", reached)
"""


@pytest.fixture(params=["in_process", "exec", "zygote"])
async def world(request: pytest.FixtureRequest, home: Path) -> AsyncIterator[Open]:
    async with worlds(request.param, home) as open_one:
        yield open_one


@pytest.fixture
async def forked(home: Path) -> AsyncIterator[Open]:
    async with worlds("zygote", home) as open_one:
        yield open_one


def python(code: str) -> dict[str, Any]:
    return {"tool": "run_python", "input": {"code": code}}


def bash(command: str, **options: Any) -> dict[str, Any]:
    return {"tool": "bash", "input": {"command": command, **options}}


def results(messages: tuple[Message, ...]) -> list[str]:
    blocks = [block for message in messages for block in message.content if isinstance(block, ToolResult)]
    return ["".join(each.text for each in block.content if isinstance(each, Text)) for block in blocks]


async def ask(agent: AsyncSubagent, prompt: str = "go") -> list[str]:
    """Ask the agent, and return the texts of all results so far."""
    await agent.query(prompt)
    return results((await agent.show()).messages)


async def test_code_cannot_replace_the_guard(world: Open, tmp_path: Path) -> None:
    """A refused command stays refused after code has replaced the classes of the checks that it can import."""
    policy = PolicyConfig(approval_mode="ask", dangerous_tools=("bash",))
    root = await world(config=Config(policy=policy))
    script = [python(REPLACE_GUARD), bash("touch ran-without-approval"), "done"]
    agent = await root.spawn("x", tools=["run_python", "bash"], backend=ScriptedBackend(script), cwd=tmp_path)
    texts = await ask(agent)
    assert texts[0].strip() == "0 guards"
    assert texts[1].startswith("[Denied")
    assert not (tmp_path / "ran-without-approval").exists()


async def test_code_cannot_exceed_a_limit_of_calls(world: Open, tmp_path: Path) -> None:
    """The number of model calls is counted outside of the process in which the code replaces the counters."""
    root = await world()
    script = [python(REPLACE_BUDGET), *(python(str(number)) for number in range(6)), "done"]
    agent = await root.spawn(
        "x", tools=["run_python"], budget=Budget(max_model_calls=3), backend=ScriptedBackend(script), cwd=tmp_path
    )
    reply = await agent.query("go")
    assert reply.usage.model_calls <= 3
    assert reply.tool_calls <= 3


@pytest.mark.parametrize("world", ["exec", "zygote"], indirect=True)
async def test_code_cannot_read_the_memory_of_the_worker(world: Open, tmp_path: Path) -> None:
    """The code can neither trace the worker nor open its memory, variables, descriptors and folders."""
    if why := unavailable_reason():
        pytest.skip(why)
    root = await world()
    agent = await root.spawn(
        "x", tools=["run_python"], backend=ScriptedBackend([python(READ_MEMORY), "done"]), cwd=tmp_path
    )
    (tmp_path / "worker").write_text(str(await pid_of(agent)))
    assert (await ask(agent))[0].strip() == "reached: []"


async def test_agent_without_tool_calls_has_no_tool_host(forked: Open, tmp_path: Path) -> None:
    """The first call of a tool that a tool host runs starts the process, and later calls use the same process."""
    root = await forked()
    script = ["hello", {"tool": "list_files", "input": {}}, "listed", python("import os; os.getpid()"), "ran"]
    agent = await root.spawn("x", tools=["list_files", "run_python"], backend=ScriptedBackend(script), cwd=tmp_path)
    await agent.query("go")
    before = below(os.getpid())
    await agent.query("go")
    [host] = below(os.getpid()) - before
    assert parent_of(host) == parent_of(await pid_of(agent))
    assert (await ask(agent))[-1].strip() == str(host)


async def pid_of(agent: AsyncSubagent) -> int:
    """Return the pid of the agent's worker."""
    pid = (await agent.state()).pid
    assert pid is not None
    return pid


Find = Callable[[AsyncSubagent], Awaitable[int]]


async def tool_host_of(agent: AsyncSubagent) -> int:
    """Return the pid of the agent's tool host, which its code printed first."""
    return int(results((await agent.show()).messages)[0])


async def zygote_of(agent: AsyncSubagent) -> int:
    """Return the pid of the zygote of the agent's worker."""
    return parent_of(await pid_of(agent))


@pytest.mark.parametrize("victim", [tool_host_of, pid_of, zygote_of])
async def test_killed_process_leaves_no_process(forked: Open, tmp_path: Path, victim: Find) -> None:
    """A kill of the tool host, the worker or the zygote ends foreground and background commands of the agent."""
    root: AsyncOrchestrator = await forked()
    stray = "setsid sh -c 'echo $$ >> pids; sleep 600' & echo $$ >> pids; sleep 600"
    script = [python("import os; os.getpid()"), bash(stray, background=True), "started", bash(stray), "done", "again"]
    agent = await root.spawn("x", tools=["run_python", "bash"], backend=ScriptedBackend(script), cwd=tmp_path)
    await agent.query("go")
    asked = agent.submit("go")
    pids = tmp_path / "pids"
    await eventually(lambda: pids.exists() and len(pids.read_text().split()) == 4)
    host = await tool_host_of(agent)
    with Watch({*map(int, pids.read_text().split()), host}) as watch:
        os.kill(await victim(agent), signal.SIGKILL)
        await asyncio.to_thread(watch.wait)
    await asyncio.wait({asyncio.ensure_future(asked)}, timeout=30)


async def test_end_of_the_tool_host_is_told_to_the_model(world: Open, tmp_path: Path) -> None:
    """The call that ends the process reports what is lost, and the next calls work in a new process."""
    root = await world()
    script = [
        python("x = 1"),
        bash("sleep 600", background=True),
        python("import os, signal; os.kill(os.getpid(), signal.SIGKILL)"),
        python("'x' in globals()"),
        {"tool": "bg_status", "input": {}},
        "done",
    ]
    agent = await root.spawn(
        "x", tools=["run_python", "bash", "bg_status"], backend=ScriptedBackend(script), cwd=tmp_path
    )
    texts = await ask(agent)
    assert "The variables of run_python are lost. Its background jobs have ended." in texts[2]
    assert "what earlier calls had bound is gone (x)" in texts[3]
    assert texts[3].rstrip().endswith("False")
    assert texts[4] == "job_1 ended with the process that ran it"


@pytest.mark.parametrize("world", ["in_process", "zygote"], indirect=True)
async def test_end_of_the_agent_ends_its_jobs(world: Open, tmp_path: Path) -> None:
    """Background jobs end with the agent. Only killed workers of the executing launcher leave them."""
    root = await world()
    script = [bash("echo $$ > pid; exec sleep 600", background=True), bash("until [ -s pid ]; do :; done"), "done"]
    agent = await root.spawn("x", tools=["bash"], backend=ScriptedBackend(script), cwd=tmp_path)
    await agent.query("go")
    with Watch({int((tmp_path / "pid").read_text())}) as watch:
        await agent.kill()
        await asyncio.to_thread(watch.wait)


@pytest.mark.parametrize("world", ["exec", "zygote"], indirect=True)
async def test_tool_host_is_known_as_a_process_of_its_agent(world: Open, tmp_path: Path) -> None:
    """Commands are recognized by this ancestor. A tool host that has ended is unknown."""
    root = await world()
    script = [python("import os; os.getpid()"), "one", python("os._exit(1)"), "two"]
    agent = await root.spawn("x", tools=["run_python"], backend=ScriptedBackend(script), cwd=tmp_path)
    await agent.query("go")
    host = await tool_host_of(agent)
    assert root.supervisor.workers.agent_of(host) == agent.id
    await agent.query("go")
    await eventually(lambda: root.supervisor.workers.agent_of(host) is None)
