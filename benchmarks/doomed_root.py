"""A program with fifty agents that says so and waits to be killed. Usage: doomed_root.py HOME CASE WORKERS.

Prints one JSON line: `workers`, the pids of its workers, and `spared`, those of children of its own. `CASE` is one of
bench_kill's; what concerns the program itself happens here, the rest from outside.
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
"""A command whose child leads a session of its own, has no parent left, and ignores polite signals."""


def fork_child(case: str) -> list[int]:
    """Fork as a user's program might: once all is up, with everything it has open, and a child that stays."""
    if case not in ("forked", "forked_in_c"):
        return []
    libc = ctypes.CDLL(None)
    # libc's own fork runs none of Python's at-fork handlers: the child keeps every descriptor.
    pid = libc.fork() if case == "forked_in_c" else os.fork()
    if pid == 0:
        while True:
            libc.pause()
    return [pid]


async def main(home: Path, case: str, workers: int) -> None:
    """Start the agents, speak, wait."""
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
