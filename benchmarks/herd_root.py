"""A root whose agents are asked at once. It prints one JSON line, and then answers each line on stdin with another one.

The first line has the figures of the first queries, from the start of the root. The second line has those of a query to
the same agents. `first` is the median time in ms until the first text of an agent, and `cpu` the CPU time in seconds of
the root and all its processes until every agent has its first text. Usage: herd_root.py HOME URL MODEL COUNT
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
from pathlib import Path
from statistics import median
from time import perf_counter


def cpu_seconds() -> float:
    """Return the CPU time of this process and all processes below it."""
    children: dict[int, list[int]] = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            parent = int(stat.read_text().rpartition(")")[2].split()[1])
        except OSError:
            continue
        children.setdefault(parent, []).append(int(stat.parent.name))
    total, below = 0, [os.getpid()]
    while below:
        pid = below.pop()
        below += children.get(pid, [])
        for schedstat in Path(f"/proc/{pid}/task").glob("*/schedstat"):
            try:
                total += int(schedstat.read_text().split()[0])
            except OSError:
                continue
    return total / 1e9


async def main(home: str, url: str, model: str, count: str) -> None:
    """Spawn the agents, and ask them for each figure."""
    begin = perf_counter()
    from orch import AsyncOrchestrator, AsyncSubagent, Config, SubagentsConfig
    from orch_protocol.wire.worker_messages import TurnEvent

    env = {**os.environ, "ANTHROPIC_API_KEY": "k", "ANTHROPIC_BASE_URL": url}
    config = Config(subagents=SubagentsConfig(max_concurrent=int(count)))

    async def ask(agent: AsyncSubagent, texts: list[float], everybody: asyncio.Event) -> None:
        seen: list[TurnEvent] = []

        def on_event(event: TurnEvent) -> None:
            if event.kind == "text" and not seen:
                seen.append(event)
                texts.append(perf_counter())
                if len(texts) == int(count):
                    everybody.set()

        await agent.query("go", on_event=on_event)

    async with AsyncOrchestrator(model, config=config, home=home, env=env) as root:
        spawns = (root.spawn("nothing", tools=[], context="none") for _ in range(int(count)))
        agents = await asyncio.gather(*spawns)
        before = 0.0
        while True:
            texts, everybody = list[float](), asyncio.Event()
            queries = [asyncio.ensure_future(ask(agent, texts, everybody)) for agent in agents]
            await everybody.wait()
            cpu = cpu_seconds() - before
            await asyncio.gather(*queries)
            print(json.dumps({"first": 1000 * (median(texts) - begin), "cpu": cpu}), flush=True)
            if not await asyncio.to_thread(sys.stdin.readline):
                return
            begin, before = perf_counter(), cpu_seconds()


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
