"""Count the Python calls of a scripted query and of a spawn, in the version of orch that this interpreter imports.

`log_calls.py` logs the calls of the root, the shim, the zygotes and the workers in the given folder. Each figure is for
the second of two equal actions, so that imports and caches are warm. The program uses only names in `orch.__all__`. The
program prints one JSON object. For `query` and `spawn`, the object contains the number of calls and modules of orch's
three packages, the names of these modules, and the number of all calls.
"""

from __future__ import annotations

import asyncio
import json
import sys
from pathlib import Path
from typing import Any

QUERY, SPAWN = 1, 2
PACKAGES = ("orch", "orch_worker", "orch_protocol")
SETTLE_SECONDS = 0.05


class Phase:
    """Turns the logging of calls on and off, in every process."""

    def __init__(self, file: Path) -> None:
        self.file = file

    def set(self, number: int) -> None:
        """Write the number of the phase that all processes read."""
        with open(self.file, "r+b") as file:
            file.write(bytes([number]))


async def run(folder: Path) -> None:
    """Spawn two agents and send two queries to each. Log the second spawn and the second query of the first agent."""
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


def summary(log: Path, phase: int) -> dict[str, Any]:
    """Return the number of calls in `log` in the phase `phase`, and the calls and modules of orch."""
    calls = [line.split(" ", 2) for line in log.read_text().splitlines()]
    modules = [module for number, _, module in calls if number == str(phase)]
    ours = [module for module in modules if module.partition(".")[0] in PACKAGES]
    names = sorted(set(ours))
    return {"calls": len(ours), "modules": len(names), "names": names, "all_calls": len(modules)}


if __name__ == "__main__":
    folder = Path(sys.argv[1])
    asyncio.run(run(folder))
    json.dump({"query": summary(folder / "log", QUERY), "spawn": summary(folder / "log", SPAWN)}, sys.stdout)
