"""The cold start of a root, and the time from a spawn to the first answered ping. The peers are other new processes."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path
from statistics import median
from time import perf_counter

import harness
from harness import Args, Row

SPAWNS_A_ROUND = 5

# A separate program, so that the measurement includes code that the library loads on first use.
COLD_START = """
import sys, time
from pathlib import Path
from orch import Orchestrator, ScriptedBackend
begin = time.perf_counter()
with Orchestrator(home=Path(sys.argv[1])) as o:
    agent = o.spawn("nothing", backend=ScriptedBackend([]))
    agent.ping()
    print(time.perf_counter() - begin)
"""


def cold_start(home: Path) -> float:
    """Return the seconds from `Orchestrator()` to the first ping in a new program."""
    command = [sys.executable, "-P", "-c", COLD_START, str(home)]
    return float(subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True, timeout=60).stdout)


async def measure(args: Args) -> list[Row]:
    """Measure all sides in the same rounds."""
    sys.path.append(str(harness.PEERS))
    import zmq_echo

    from orch import AsyncOrchestrator, ScriptedBackend

    with harness.scratch() as folder:
        hub = zmq_echo.Hub(folder)
        async with AsyncOrchestrator(home=folder / "home") as orchestrator:

            def spawned(template: str) -> Callable[[], Awaitable[float]]:
                async def seconds() -> float:
                    taken = []
                    for _ in range(SPAWNS_A_ROUND):
                        begin = perf_counter()
                        agent = await orchestrator.spawn("nothing", backend=ScriptedBackend([]), template=template)
                        await agent.ping()
                        taken.append(perf_counter() - begin)
                        await agent.kill()
                    return median(taken)

                return seconds

            def plain_worker() -> float:
                begin = perf_counter()
                worker = zmq_echo.Worker(hub, "plain_worker.py")
                taken = perf_counter() - begin
                worker.stop()
                return taken

            took = await harness.interleave(
                args.rounds,
                cold=lambda: cold_start(folder / "cold"),
                plain=plain_worker,
                lean=spawned("lean"),
                bare=lambda: median(harness.timed_pass() for _ in range(SPAWNS_A_ROUND)),
                sdk=spawned("sdk"),
            )
        hub.close()
    cold, plain, lean, bare, sdk = ([1000 * seconds for seconds in series] for series in took.values())
    return [
        harness.compared(
            "cold start: Orchestrator() to first ping, lean (ms; peer: plain worker)",
            cold,
            plain,
            must="<= 0.5",
            aim="<= 0.2",
        ),
        harness.compared(
            "spawn to first answered ping, lean, p50 (ms; peer: python -I -S -c pass)",
            lean,
            bare,
            must="<= 1.5",
            aim="<= 1",
        ),
        harness.compared(
            "spawn to first answered ping, sdk template, p50 (ms; peer: plain worker; times faster)",
            sdk,
            plain,
            must=">= 50",
            aim=">= 150",
            inverse=True,
        ),
    ]


if __name__ == "__main__":
    harness.main(measure)
