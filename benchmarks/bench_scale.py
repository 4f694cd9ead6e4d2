"""Many workers: how fast two hundred are up, what each costs the root, and what thirty-two at once lose to it."""

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
    """Return how many descriptors this process has open."""
    return len(os.listdir("/proc/self/fd"))


async def up_and_answering(args: Args, folder: Path, template: str) -> tuple[dict[str, list[float]], float]:
    """Return the seconds until all workers have answered, ours and the forkserver's, and our descriptors a worker."""
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
    # The first round's count holds what a template opens once.
    return took, median(opened[1:])


async def efficiency(args: Args, folder: Path) -> Row:
    """Let 32 workers take a scripted step of 50 ms each, 20 times in step; nothing lost would be 1.0."""
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
    """Measure both templates against a forkserver that preloads the same packages, then the busy workers."""
    with harness.scratch() as folder:
        rows, most = [], 0.0
        for template in ("lean", "sdk"):
            took, opened = await up_and_answering(args, folder, template)
            most = max(most, opened)
            rows.append(
                harness.compared(
                    f"{WORKERS} workers up and answering, {template} (s; peer: multiprocess forkserver, same preload)",
                    took["ours"],
                    took["peer"],
                    must="<= 0.5",
                    aim="<= 0.3",
                )
            )
        rows.append(harness.counted("root descriptors per worker", most, must="<= 3"))
        rows.append(await efficiency(args, folder))
    return rows


if __name__ == "__main__":
    harness.main(measure, affinity="all")
