"""Private memory of a worker after a garbage collection, compared with a process that imported all modules itself."""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

import harness
from harness import Args, Row

FRESH = ("fresh", "<= 0.08", "<= 0.055")
WITHOUT = {
    "heap_fill": "private memory after gc, lean worker, heap holes not filled (MiB; peer: filled)",
    "warm_up": "private memory after gc, lean worker, no rehearsal before the fork (MiB; peer: with it)",
}
"""The rows for preparations of the zygote. A preparation stays while a worker without it is more than 5 % larger."""
QUERIED = ("after a scripted query", "<= 0.09", "<= 0.06")


def private_mib(pid: int) -> float:
    """Return the MiB that would become free if the process `pid` ended."""
    lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    return sum(int(line.split()[1]) for line in lines if line.startswith("Private_")) / 1024


async def preparations(args: Args, folder: Path) -> list[Row]:
    """Measure new lean workers of zygotes that leave out one preparation, and of a zygote with all preparations."""
    import entries

    from orch import AsyncOrchestrator, Config, ScriptedBackend

    weights: dict[str, list[float]] = {}
    for without in ("", *WITHOUT):
        os.environ[entries.WITHOUT] = without
        home = folder / f"without-{without}"
        async with AsyncOrchestrator(config=Config(), home=home, launcher=entries.launcher) as orchestrator:
            for _ in range(args.rounds):
                agent = await orchestrator.spawn("nothing", backend=ScriptedBackend([]), context="none")
                os.kill(agent.pid, signal.SIGUSR1)
                await agent.ping()
                weights.setdefault(without, []).append(private_mib(agent.pid))
                await agent.kill()
    del os.environ[entries.WITHOUT]
    return [
        harness.compared(figure, weights[without], weights[""], must=">= 1.05", aim=">= 1.1")
        for without, figure in WITHOUT.items()
    ]


async def measure(args: Args) -> list[Row]:
    """Measure a worker of each template before and after its first turn, and a plain worker, in every round."""
    sys.path.append(str(harness.PEERS))
    import entries
    import zmq_echo

    from orch import AsyncOrchestrator, Config, ScriptedBackend

    # The kernel shows the memory of a worker only if this variable is set.
    os.environ["ORCH_DEBUG_DUMPABLE"] = "1"
    weights: dict[tuple[str, str], list[float]] = {}
    with harness.scratch() as folder:
        hub = zmq_echo.Hub(folder)
        async with AsyncOrchestrator(config=Config(), home=folder / "home", launcher=entries.launcher) as orchestrator:

            async def weigh(template: str) -> None:
                agent = await orchestrator.spawn(
                    "nothing", backend=ScriptedBackend(["ok"]), template=template, context="none"
                )
                for state, _, _ in (FRESH, QUERIED):
                    os.kill(agent.pid, signal.SIGUSR1)
                    # The signal interrupts the waiting worker, so the worker answers the ping after the collection.
                    await agent.ping()
                    weights.setdefault((template, state), []).append(private_mib(agent.pid))
                    if state == FRESH[0]:
                        await agent.query("say it")
                await agent.kill()

            async def weigh_plain() -> None:
                worker = zmq_echo.Worker(hub, "plain_worker.py")
                worker.ask("gc")
                weights.setdefault(("plain", ""), []).append(private_mib(worker.pid))
                worker.stop()

            for _ in range(args.rounds):
                await weigh("lean")
                await weigh_plain()
                await weigh("sdk")
        hub.close()
        prepared = await preparations(args, folder)
    plain = weights["plain", ""]
    return [
        harness.compared(
            f"private memory after gc, {template} worker, {state} (MiB; peer: plain worker)",
            weights[template, state],
            plain,
            must=must,
            aim=aim,
        )
        for template in ("lean", "sdk")
        for state, must, aim in (FRESH, QUERIED)
    ] + prepared


if __name__ == "__main__":
    harness.main(measure)
