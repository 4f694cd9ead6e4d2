"""A program with workers that tests kill: `user_program.py <folder> <socket> <what> <count> [option...]`.

The program prints a line of JSON with the process ids of its processes, then waits. The option `exec` uses the other
launcher. `fork` forks a child that stays. `leak` forks a child without Python's fork handlers, which keeps every
descriptor. `sigchld-ignored` and `sigchld-blocked` set the signal before any process is started. `report` prints the
exit codes and ends.
"""

from __future__ import annotations

import asyncio
import ctypes
import json
import os
import signal
import sys
from pathlib import Path

from orch.processes.base import LaunchRequest
from orch.processes.exec import ExecLauncher
from orch.processes.zygote import ZygoteLauncher
from orch_protocol.agent.spec import WorkerBirth


async def run(folder: Path, address: str, count: int, options: set[str]) -> None:
    """Start `count` workers with the address `address`, and report their process ids."""
    entry = "fake_worker:main"
    forks = "exec" not in options
    launcher = ZygoteLauncher("root", folder, entry=entry) if forks else ExecLauncher("root", folder, entry=entry)
    await launcher.start()
    workers = [
        await launcher.launch(
            LaunchRequest(
                f"a{number}", 1, b"i", address, WorkerBirth(b"t"), "lean", str(folder / f"a{number}.log"), str(folder)
            )
        )
        for number in range(count)
    ]
    pids = {"workers": [worker.pid for worker in workers], "others": others() - {worker.pid for worker in workers}}
    if "fork" in options:
        child = os.fork()
        if child == 0:
            signal.pause()
        pids["child"] = child
    if "leak" in options:
        # Do not use os.fork, because the registered handlers for the child must not run.
        libc = ctypes.CDLL(None)
        child = libc.fork()
        if child == 0:
            libc.pause()
        pids["child"] = child
    print(json.dumps(pids, default=list), flush=True)
    if "report" in options:
        codes = [await worker.ended for worker in workers]
        await launcher.stop()
        print(json.dumps(codes), flush=True)
    else:
        await asyncio.Event().wait()


def others() -> set[int]:
    """Return the process ids of the children of this process and of their children.

    These are the shim and the zygotes.
    """
    return {grand for child in children(os.getpid()) for grand in (child, *children(child))}


def children(pid: int) -> list[int]:
    """Return the pids of the children of `pid`."""
    return [int(found) for found in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def main() -> None:
    """Run the program."""
    folder, path, what, count, *options = sys.argv[1:]
    if "sigchld-ignored" in options:
        signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    if "sigchld-blocked" in options:
        signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGCHLD])
    asyncio.run(run(Path(folder), f"{what}@{path}", int(count), set(options)))


if __name__ == "__main__":
    main()
