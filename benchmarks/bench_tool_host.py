"""What the tools of an agent cost: the spawn, the first command and further commands, memory, and many idle agents."""

from __future__ import annotations

import asyncio
import os
import subprocess
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import Any

import harness
from bench_memory import private_mib
from harness import Args, Row

COMMANDS = 40
SPAWNS = 5
IDLE = 200
TOOLS = {"none": [], "bash": ["bash"], "both": ["bash", "run_python"]}
COMMAND = {"tool": "bash", "input": {"command": "true"}}
PARENT = {"tool": "bash", "input": {"command": "echo $PPID > parent"}}


def tree(pid: int) -> set[int]:
    """Return the process `pid` and the processes below it."""
    found, pending = set(), [pid]
    while pending:
        found.add(pid := pending.pop())
        pending += map(int, Path(f"/proc/{pid}/task/{pid}/children").read_text().split())
    return found


async def measure(args: Args) -> list[Row]:
    """Measure all sides in each round."""
    from orch import AsyncOrchestrator, Config, PolicyConfig, ScriptedBackend
    from orch_protocol.agent.config import SubagentsConfig
    from orch_protocol.agent.spec import Limits

    os.environ["ORCH_DEBUG_DUMPABLE"] = "1"  # Otherwise the kernel does not show the memory of the processes.
    took: dict[str, list[float]] = {}
    with harness.scratch() as folder:
        config = Config(subagents=SubagentsConfig(max_concurrent=2 * IDLE), policy=PolicyConfig(approval_mode="allow"))
        async with AsyncOrchestrator(config=config, home=folder / "home") as orchestrator:

            async def spawned(tools: list[str], script: list[Any], **options: Any) -> Any:
                agent = await orchestrator.spawn(
                    "nothing", backend=ScriptedBackend(script), tools=tools, cwd=folder, **options
                )
                await agent.ping()
                return agent

            async def spawn(name: str) -> None:
                taken = []
                for _ in range(SPAWNS):
                    began = perf_counter()
                    agent = await spawned(TOOLS[name], [])
                    taken.append(perf_counter() - began)
                    await agent.kill()
                took.setdefault(name, []).append(1e3 * median(taken))

            async def commands() -> None:
                script = [COMMAND, "one", *[COMMAND] * (COMMANDS - 1), PARENT, "done"]
                agent = await spawned(TOOLS["bash"], script, limits=Limits(max_turns=2 * COMMANDS))
                for name, count in (("first", 1), ("further", COMMANDS)):
                    began = perf_counter()
                    await agent.query("go")
                    took.setdefault(name, []).append(1e3 * (perf_counter() - began) / count)
                parent = int((folder / "parent").read_text())
                pids = tree(agent.pid) | tree(parent)
                took.setdefault("memory", []).append(sum(map(private_mib, pids)))
                await agent.kill()

            def plain(name: str, argv: list[str]) -> None:
                began = perf_counter()
                subprocess.run(argv, check=True)
                took.setdefault(name, []).append(1e3 * (perf_counter() - began))

            for name in TOOLS:
                await spawn(name)
            took.clear()
            for _ in range(args.rounds):
                for name in TOOLS:
                    await spawn(name)
                await commands()
                plain("shell", ["bash", "-c", "true"])
                plain("python", ["python3", "-I", "-S", "-c", "pass"])
            count = IDLE // 10 if args.quick else IDLE
            began = perf_counter()
            agents = await asyncio.gather(*(spawned(TOOLS["bash"], []) for _ in range(count)))
            idle_seconds = perf_counter() - began
            idle_mib = sum(private_mib(pid) for agent in agents for pid in tree(agent.pid))
    return [
        harness.compared(
            "spawn to ping with bash (ms; peer: without tools)",
            took["bash"],
            took["none"],
            must="<= 1.25",
            aim="<= 1.1",
        ),
        harness.compared(
            "spawn to ping with bash and run_python (ms; peer: without tools)",
            took["both"],
            took["none"],
            must="<= 1.25",
            aim="<= 1.1",
        ),
        harness.compared(
            "query with the first command (ms; peer: start of an interpreter)",
            took["first"],
            took["python"],
            must="<= 3",
            aim="<= 1",
        ),
        harness.compared(
            "each further command of a query (ms; peer: start of bash)",
            took["further"],
            took["shell"],
            must="<= 6",
            aim="<= 3",
        ),
        harness.counted(
            f"private memory of an agent after {COMMANDS + 1} commands (MiB)",
            median(took["memory"]),
            must="<= 17",
            aim="<= 14.3",
        ),
        harness.counted(f"{count} idle agents with bash: time to the last ping (s)", idle_seconds, must="<= 5"),
        harness.counted(f"{count} idle agents with bash: private memory (MiB)", idle_mib, must="<= 1200"),
    ]


if __name__ == "__main__":
    harness.main(measure)
