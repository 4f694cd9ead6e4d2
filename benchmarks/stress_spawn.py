"""Spawn, ping and kill, twenty thousand times: nothing may hang, no frame be bad, no exit code be lost."""

from __future__ import annotations

import asyncio
import json
import signal
import sys
from pathlib import Path

import harness
from harness import Args, Row

CYCLES, QUICK_CYCLES = 20_000, 500
AT_ONCE = 8
CYCLE_SECONDS = 30.0
PROGRESS = 1000
RUN = "stress"


def lost(home: Path) -> int:
    """Return how many of the processes that were launched are not known to have ended as they did: by SIGKILL."""
    launched, ended = 0, 0
    for entry in map(json.loads, (home / "runs" / RUN / "journal.jsonl").read_text().splitlines()):
        launched += entry.get("type") == "launched"
        ended += entry.get("type") == "ended" and entry.get("code") == -signal.SIGKILL
    return launched - ended


async def measure(args: Args) -> list[Row]:
    """Run the cycles, a few at a time, under one root."""
    from orch import AsyncOrchestrator, Config, ScriptedBackend, SubagentsConfig

    cycles = QUICK_CYCLES if args.quick else CYCLES
    hangs, started, failures = 0, 0, list[str]()
    with harness.scratch() as home:
        config = Config(subagents=SubagentsConfig(max_concurrent=4 * AT_ONCE))
        async with AsyncOrchestrator(config=config, home=home, run=RUN) as orchestrator:

            async def cycle() -> None:
                agent = await orchestrator.spawn("nothing", backend=ScriptedBackend([]))
                await agent.ping()
                await agent.kill()

            async def cycle_again_and_again() -> None:
                nonlocal started, hangs
                while started < cycles:
                    started += 1
                    if started % PROGRESS == 0:
                        print(f"{started} of {cycles}", file=sys.stderr, flush=True)
                    try:
                        await asyncio.wait_for(cycle(), CYCLE_SECONDS)
                    except TimeoutError:
                        hangs += 1
                    except Exception as error:
                        failures.append(f"{type(error).__name__}: {error}")

            await asyncio.gather(*(cycle_again_and_again() for _ in range(AT_ONCE)))
            bad = orchestrator.supervisor.counters.total()
        missing = lost(home)
    for failure in failures[:10]:
        print(failure, file=sys.stderr)
    title = f"{cycles} spawn-ping-kill cycles, {AT_ONCE} at once: "
    return [
        harness.counted(f"{title}hangs", hangs, must="== 0"),
        harness.counted(f"{title}errors", len(failures), must="== 0"),
        harness.counted(f"{title}bad frames", bad, must="== 0"),
        harness.counted(f"{title}lost exit codes", missing, must="== 0"),
    ]


if __name__ == "__main__":
    harness.main(measure, affinity="all")
