"""A program with fifty agents. It reports that it is ready, and waits until it is killed. Usage: doomed_root.py HOME
CASE WORKERS.

The program prints one JSON line. `workers` contains the process ids of its workers, and `spared` those of its own
children. `CASE` is a case of bench_kill. This program prepares its own part of the case; bench_kill prepares the rest.
"""

from __future__ import annotations

import asyncio
import ctypes
import json
import os
import signal
import sys
from pathlib import Path

LEAVES = "(trap '' TERM HUP; setsid sleep 600 & ) & sleep 600"
"""A command whose child leads its own session, has no parent, and ignores SIGTERM and SIGHUP."""


def fork_child(case: str) -> list[int]:
    """Fork a child process after the start of all workers, as a user's program may do.

    The child inherits all open files.
    """
    if case not in ("forked", "forked_in_c"):
        return []
    libc = ctypes.CDLL(None)
    # The fork function of libc runs none of Python's at-fork handlers, so the child keeps every descriptor.
    pid = libc.fork() if case == "forked_in_c" else os.fork()
    if pid == 0:
        while True:
            libc.pause()
    return [pid]


async def main(home: Path, case: str, workers: int) -> None:
    """Start the agents, print the line, and wait."""
    from entries import launcher

    from orch import AsyncOrchestrator, Config, ScriptedBackend, SubagentsConfig

    config = Config(subagents=SubagentsConfig(max_concurrent=workers))
    async with AsyncOrchestrator(config=config, home=home, launcher=launcher) as orchestrator:
        backend = ScriptedBackend([{"tool": "bash", "input": {"command": LEAVES}}] if case == "tools" else [])
        agents = await asyncio.gather(
            *(orchestrator.spawn("wait", backend=backend, tools=["bash"]) for _ in range(workers))
        )
        await asyncio.gather(*(agent.ping() for agent in agents))
        asked = [agent.submit("go") for agent in agents] if case == "tools" else []
        spared = fork_child(case)
        print(json.dumps({"workers": [agent.pid for agent in agents], "spared": spared}), flush=True)
        await asyncio.gather(*asked)
        await asyncio.get_running_loop().create_future()


if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    asyncio.run(main(Path(sys.argv[1]), sys.argv[2], int(sys.argv[3])))
