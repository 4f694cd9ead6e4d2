"""What a sandbox level adds to a command: the tool `bash` at each level that this machine has, against it at L0."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextlib import ExitStack
from pathlib import Path
from statistics import median
from time import perf_counter

import harness
from harness import Args, Row

from orch_protocol.core.sandbox import LEVELS, Level, SandboxSpec
from orch_worker.sandbox import probe
from orch_worker.tools.api.base import ToolContext
from orch_worker.tools.shell.shell import bash

COMMANDS = 200
FIGURE = "a command at sandbox level {} (ms; peer: at L0)"
MUST: dict[Level, tuple[str, str]] = {
    "L1": ("<= 1.25", "<= 1.1"),
    "L2": ("<= 1.25", "<= 1.1"),
    "L3": ("<= 6", "<= 3"),
}


async def measure(args: Args) -> list[Row]:
    """Run a command that does nothing, at one level after the other."""
    times = max(1, (COMMANDS // 10 if args.quick else COMMANDS) // args.rounds)
    missing = probe.machine().missing
    with harness.scratch() as folder, ExitStack() as stack:

        def at(level: Level) -> Callable[[], Awaitable[float]]:
            (cwd := folder / level).mkdir()
            context = ToolContext(cwd, folder=Path(folder, f"session-{level}"), sandbox=SandboxSpec(level))
            stack.callback(context.belongings.close)

            async def commands() -> float:
                taken = []
                for _ in range(times):
                    began = perf_counter()
                    await bash.run(context, {"command": "true"})
                    taken.append(perf_counter() - began)
                return 1e3 * median(taken)

            return commands

        took = await harness.interleave(args.rounds, **{level: at(level) for level in LEVELS if level not in missing})
    rows = []
    for level, (must, aim) in MUST.items():
        if why := missing.get(level):
            rows.append(harness.skipped(FIGURE.format(level), why, must=must, aim=aim, ours=[]))
        else:
            rows.append(harness.compared(FIGURE.format(level), took[level], took["L0"], must=must, aim=aim))
    return rows


if __name__ == "__main__":
    harness.main(measure)
