"""Count the Python calls of a scripted query and of a spawn, in the orch that this interpreter imports.

`log_calls.py` logs those of the root, the shim, the zygotes and the workers in the folder given. Each figure is
about the second of two equal actions, so that imports and caches are warm. Uses only names of `orch.__all__`.
Prints one JSON object: for `query` and `spawn`, the calls and the modules of orch's three packages, and all calls.
"""

from __future__ import annotations

import asyncio
import json
import sys
from pathlib import Path

QUERY, SPAWN = 1, 2
PACKAGES = ("orch", "orch_worker", "orch_protocol")
SETTLE_SECONDS = 0.05


class Phase:
    """Switches the logging of calls, in every process."""

    def __init__(self, file: Path) -> None:
        self.file = file

    def set(self, number: int) -> None:
        """Write the number of the phase that all processes read."""
        with open(self.file, "r+b") as file:
            file.write(bytes([number]))


async def run(folder: Path) -> None:
    """Spawn two agents and send each two queries; log the second spawn and the second query of the first agent."""
    from orch import AsyncOrchestrator, ScriptedBackend

    phase = Phase(folder / "phase")
    async with AsyncOrchestrator(home=folder / "home") as orchestrator:
        agent = await orchestrator.spawn("nothing", backend=ScriptedBackend([{"loop": ["ok"]}]))
        await agent.ping()
        phase.set(SPAWN)
        second = await orchestrator.spawn("nothing", backend=ScriptedBackend([{"loop": ["ok"]}]))
        await second.ping()
        phase.set(0)
        await agent.query("The first carries the task as well.")
        await asyncio.sleep(SETTLE_SECONDS)
        phase.set(QUERY)
        await agent.query("The second is like all that follow.")
        phase.set(0)


def summary(log: Path, phase: int) -> dict[str, int]:
    """Return how many calls `log` has of `phase`, and how many calls and modules of them are of orch."""
    calls = [line.split(" ", 2) for line in log.read_text().splitlines()]
    modules = [module for number, _, module in calls if number == str(phase)]
    ours = [module for module in modules if module.partition(".")[0] in PACKAGES]
    return {"calls": len(ours), "modules": len(set(ours)), "all_calls": len(modules)}


if __name__ == "__main__":
    folder = Path(sys.argv[1])
    asyncio.run(run(folder))
    json.dump({"query": summary(folder / "log", QUERY), "spawn": summary(folder / "log", SPAWN)}, sys.stdout)
