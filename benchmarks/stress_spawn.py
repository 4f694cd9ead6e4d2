"""Spawn, ping and kill agents twenty thousand times. No call may hang, and no process, descriptor or exit code may be
lost.

Then some agents are killed and queried again ten thousand times. The root must not grow after the first thousand.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import harness
from bench_kill import descendants, stat
from harness import Args, Row

CYCLES, QUICK_CYCLES = 20_000, 500
LIVES, QUICK_LIVES = 10_000, 400
AT_ONCE = 8
CYCLE_SECONDS = 30.0
PROGRESS = 1000
RUN = "stress"


def lost(home: Path) -> int:
    """Return the number of started processes whose end by SIGKILL is not recorded."""
    launched, ended = 0, 0
    for entry in map(json.loads, (home / "runs" / RUN / "journal.jsonl").read_text().splitlines()):
        launched += entry.get("type") == "launched"
        ended += entry.get("type") == "ended" and entry.get("code") == -signal.SIGKILL
    return launched - ended


def zombies() -> int:
    """Return the number of processes below this process that have ended and were not reaped."""
    return sum(stat(pid)[:1] == ["Z"] for pid in descendants(os.getpid()))


def held() -> tuple[int, float]:
    """Return the number of descriptors of this process, and its memory in MiB."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return len(os.listdir("/proc/self/fd")), pages * os.sysconf("SC_PAGESIZE") / (1 << 20)


class Toil:
    """Repeats actions, several at a time, and counts errors."""

    def __init__(self) -> None:
        self.hangs = 0
        self.failures: list[str] = []

    async def again_and_again(self, count: int, cycles: list[Callable[[], Awaitable[None]]]) -> None:
        """Run `count` cycles.

        All functions in `cycles` run concurrently, and each function runs again after its end.
        """
        started = 0

        async def repeat(cycle: Callable[[], Awaitable[None]]) -> None:
            nonlocal started
            while started < count:
                started += 1
                if started % PROGRESS == 0:
                    print(f"{started} of {count}", file=sys.stderr, flush=True)
                try:
                    await asyncio.wait_for(cycle(), CYCLE_SECONDS)
                except TimeoutError:
                    self.hangs += 1
                except Exception as error:
                    self.failures.append(f"{type(error).__name__}: {error}")

        await asyncio.gather(*map(repeat, cycles))


def one_life_each(orchestrator: Any) -> Callable[[], Awaitable[None]]:
    """Return a function that spawns an agent, queries it and kills it."""
    from orch import ScriptedBackend

    async def cycle() -> None:
        agent = await orchestrator.spawn("nothing", backend=ScriptedBackend([]))
        await agent.ping()
        await agent.kill()

    return cycle


async def many_lives(orchestrator: Any) -> Callable[[], Awaitable[None]]:
    """Return a function that queries the same agent, kills it and resumes it."""
    from orch import ScriptedBackend

    agent = await orchestrator.spawn("nothing", backend=ScriptedBackend([{"loop": ["x"]}]))

    async def cycle() -> None:
        await agent.query("go")
        await agent.kill()
        await agent.resume()

    return cycle


async def measure(args: Args) -> list[Row]:
    """Run the cycles, several at a time, with one root for each kind of cycle."""
    from orch import AsyncOrchestrator, Config, SubagentsConfig

    cycles, lives = (QUICK_CYCLES, QUICK_LIVES) if args.quick else (CYCLES, LIVES)
    first, half = cycles // 20, cycles // 2
    config = Config(subagents=SubagentsConfig(max_concurrent=4 * AT_ONCE))
    with harness.scratch() as home:
        async with AsyncOrchestrator(config=config, home=home, run=RUN) as orchestrator:
            spawns = Toil()
            # By the 1,000th cycle, all code is loaded, and the cache of agents is full.
            await spawns.again_and_again(first, [one_life_each(orchestrator)] * AT_ONCE)
            fds, mib = held()
            await spawns.again_and_again(half - first, [one_life_each(orchestrator)] * AT_ONCE)
            half_left, (half_fds, half_mib) = zombies(), held()
            await spawns.again_and_again(cycles - half, [one_life_each(orchestrator)] * AT_ONCE)
            left, (more_fds, more_mib) = zombies(), held()
            bad = orchestrator.supervisor.counters.total()
        missing = lost(home)
    each = 1024 * (more_mib - mib) / (cycles - first)
    with harness.scratch() as home:
        async with AsyncOrchestrator(config=config, home=home, run=RUN) as orchestrator:
            again = Toil()
            agents = [await many_lives(orchestrator) for _ in range(AT_ONCE)]
            await again.again_and_again(lives // 10, agents)
            _, warm_mib = held()
            await again.again_and_again(lives - lives // 10, agents)
            growth = 100 * (held()[1] / warm_mib - 1)
    failures = spawns.failures + again.failures
    for failure in failures[:10]:
        print(failure, file=sys.stderr)
    title = f"{cycles} spawn-ping-kill cycles, {AT_ONCE} at once: "
    return [
        harness.counted(f"{title}hangs", spawns.hangs + again.hangs, must="== 0"),
        harness.counted(f"{title}errors", len(failures), must="== 0"),
        harness.counted(f"{title}bad frames", bad, must="== 0"),
        harness.counted(f"{title}lost exit codes", missing, must="== 0"),
        harness.counted(f"{title}zombies", left, must="== 0"),
        harness.counted(f"{title}additional descriptors of the root since spawn {first}", more_fds - fds, must="<= 5"),
        harness.counted(f"{title}memory of the root per recorded agent (KiB)", each, must="<= 5"),
        harness.counted(f"{half} spawns: zombies", half_left, must="== 0"),
        harness.counted(
            f"{half} spawns: additional descriptors of the root since spawn {first}", half_fds - fds, must="<= 5"
        ),
        harness.counted(
            f"{half} spawns: memory growth of the root since spawn {first} (%)",
            100 * (half_mib / mib - 1),
            must="<= 10",
        ),
        harness.counted(f"{lives} processes of the same agents: memory growth of the root (%)", growth, must="<= 10"),
    ]


if __name__ == "__main__":
    harness.main(measure, affinity="all")
