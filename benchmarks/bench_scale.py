"""Many workers.

The bench measures the start of two hundred workers, the descriptors of the root for each worker, and the time that 32
busy workers lose.
"""

from __future__ import annotations

import asyncio
import os
import sys
from pathlib import Path
from statistics import median
from time import perf_counter

import harness
from harness import Args, Row

WORKERS = 200
BUSY_WORKERS = 32
BUSY_ROUNDS = 20
STEP_SECONDS = 0.05


def descriptors() -> int:
    """Return the number of open descriptors of this process."""
    return len(os.listdir("/proc/self/fd"))


async def up_and_answering(args: Args, folder: Path, template: str) -> tuple[dict[str, list[float]], float]:
    """Return the seconds until all workers have answered, and the descriptors of the root for each worker.

    The seconds are measured for orch and for the forkserver of multiprocessing.
    """
    from orch import AsyncOrchestrator, Config, ScriptedBackend, SubagentsConfig

    config = Config(subagents=SubagentsConfig(max_concurrent=2 * WORKERS))
    opened: list[float] = []
    peer = harness.Peer(sys.executable, "forkserver_peer.py", str(folder), env={"PRELOAD": template})
    async with AsyncOrchestrator(config=config, home=folder / template) as orchestrator:

        async def start() -> object:
            agent = await orchestrator.spawn("nothing", backend=ScriptedBackend([]), template=template)
            await agent.ping()
            return agent

        async def ours() -> float:
            before, begin = descriptors(), perf_counter()
            agents = await asyncio.gather(*(start() for _ in range(WORKERS)))
            taken = perf_counter() - begin
            opened.append((descriptors() - before) / WORKERS)
            await asyncio.gather(*(agent.kill() for agent in agents))
            return taken

        took = await harness.interleave(args.rounds, ours=ours, peer=lambda: peer.ask(workers=WORKERS)["seconds"])
    peer.close()
    # The number of the first round includes the descriptors that a template opens only once.
    return took, median(opened[1:])


async def efficiency(args: Args, folder: Path) -> Row:
    """Let 32 workers take a scripted step of 50 ms at the same time, 20 times.

    An efficiency of 1.0 means that no time is lost.
    """
    from orch import AsyncOrchestrator, Config, ScriptedBackend, SubagentsConfig

    config = Config(subagents=SubagentsConfig(max_concurrent=BUSY_WORKERS))
    script = [{"loop": [{"text": "ok", "sleep": STEP_SECONDS}]}]
    async with AsyncOrchestrator(config=config, home=folder / "busy") as orchestrator:
        agents = [await orchestrator.spawn("wait", backend=ScriptedBackend(script)) for _ in range(BUSY_WORKERS)]

        async def ours() -> float:
            begin = perf_counter()
            for _ in range(BUSY_ROUNDS):
                await asyncio.gather(*(agent.query("go") for agent in agents))
            return 1000 * (perf_counter() - begin) / BUSY_ROUNDS

        took = await harness.interleave(args.rounds, ours=ours, ideal=lambda: 1000 * STEP_SECONDS)
    return harness.compared(
        "32 workers x scripted 50 ms, 20 rounds: a round (ms; peer: ideal; efficiency)",
        took["ours"],
        took["ideal"],
        must=">= 0.93",
        aim=">= 0.97",
        inverse=True,
    )


async def measure(args: Args) -> list[Row]:
    """Measure both templates against a forkserver with the same packages, then measure the busy workers."""
    with harness.scratch() as folder:
        rows, limit = [], 0.0
        for template in ("lean", "sdk"):
            took, opened = await up_and_answering(args, folder, template)
            limit = max(limit, opened)
            rows.append(
                harness.compared(
                    f"{WORKERS} workers up and answering, {template} (s; peer: multiprocess forkserver, same preload)",
                    took["ours"],
                    took["peer"],
                    must="<= 0.5",
                    aim="<= 0.3",
                )
            )
        rows.append(harness.counted("root descriptors per worker", limit, must="<= 3"))
        rows.append(await efficiency(args, folder))
    return rows


if __name__ == "__main__":
    harness.main(measure, affinity="all")
