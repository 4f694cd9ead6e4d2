"""A stand-in worker for tests of processes. Its `main` does what its `address` states.

The address is `<what>@<path>`. The path is a datagram socket on which the test listens.
"""

from __future__ import annotations

import ctypes
import fcntl
import gc
import json
import os
import resource
import signal
import socket
import subprocess
import sys
import threading

from orch_protocol.agent.spec import WorkerBirth

PR_SET_PDEATHSIG, PR_GET_PDEATHSIG, PR_GET_DUMPABLE, PR_GET_CHILD_SUBREAPER = 1, 2, 3, 37
LIFELINE = 3


def main(
    *, birth: WorkerBirth, address: str, ident: bytes, incarnation: int, agent_id: str, spool: str, **_: object
) -> int:
    """Report to the test that this worker runs, then do the requested action."""
    what, _, path = address.partition("@")
    name, _, argument = what.partition(":")
    collected: dict[str, object] = {"agent": agent_id, "pid": os.getpid()}
    if name == "describe":
        collected |= {"token": birth.token.decode(), "keys": birth.keys, "ident": ident.decode(), "spool": spool}
        collected |= describe() | {"incarnation": incarnation}
    if name == "tool":
        # A tool that leaves its session and its parent, as a faulty server does.
        code = "import os, time; print(os.getpid(), flush=True); os.close(1); time.sleep(600)"
        shell = f"setsid {sys.executable} -I -S -c '{code}' &"
        collected["orphan"] = int(subprocess.run(["sh", "-c", shell], stdout=subprocess.PIPE, check=True).stdout)
    if name == "lifeline-only":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, 0, 0, 0, 0)
    if name == "chain-only":
        fcntl.fcntl(LIFELINE, fcntl.F_SETFL, fcntl.fcntl(LIFELINE, fcntl.F_GETFL) & ~os.O_ASYNC)
    if path:
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as line:
            line.sendto(json.dumps(collected).encode(), path)
    if name == "exit":
        sys.exit(int(argument))
    elif name == "exit-with":
        sys.exit(argument)
    elif name == "die":
        os.kill(os.getpid(), int(argument))
    elif name == "raise":
        raise RuntimeError(argument)
    elif name == "print":
        print(argument)
        os.write(2, b"from below\n")
        sys.stdin.read()
    elif name == "thread":
        threading.Thread(target=signal.pause).start()
    elif name == "compute":
        sum(range(10**13))
    elif name in ("idle", "tool", "lifeline-only", "chain-only"):
        signal.pause()
    return 0


def describe() -> dict[str, object]:
    """Return how this process is tied to other processes and isolated from them."""
    libc = ctypes.CDLL(None)
    death = ctypes.c_int()
    libc.prctl(PR_GET_PDEATHSIG, ctypes.byref(death), 0, 0, 0)
    adopts = ctypes.c_int()
    libc.prctl(PR_GET_CHILD_SUBREAPER, ctypes.byref(adopts), 0, 0, 0)
    return {
        "fds": {number: os.readlink(f"/proc/self/fd/{number}") for number in range(4)},
        "other fds": [number for number in range(4, 256) if is_open(number)],
        "group": os.getpgrp(),
        "ignored": [number for number in signal.valid_signals() if signal.getsignal(number) == signal.SIG_IGN],
        "blocked": list(signal.pthread_sigmask(signal.SIG_BLOCK, ())),
        "dumpable": libc.prctl(PR_GET_DUMPABLE, 0, 0, 0, 0),
        "core": resource.getrlimit(resource.RLIMIT_CORE),
        "death signal": death.value,
        "adopts": bool(adopts.value),
        "gc": gc.isenabled(),
        "run": os.environ.get("ORCH_RUN"),
    }


def is_open(number: int) -> bool:
    """Return whether the descriptor `number` is open."""
    try:
        os.fstat(number)
    except OSError:
        return False
    return True


CLIENTS = (
    "anthropic._client",
    "anthropic.lib.bedrock._client",
    "anthropic.lib.vertex._client",
    "openai._client",
    "openai.lib.azure",
)


def main_of_sdk(*, address: str, agent_id: str, **_: object) -> int:
    """Report to the test which clients of SDKs are already imported."""
    imported = [name for name in CLIENTS if name in sys.modules]
    from orch_worker.backends.http import warm_connection

    links = [os.readlink(f"/proc/self/fd/{number}") for number in range(64) if is_open(number)]
    fields = {
        "agent": agent_id,
        "imported": imported,
        "compactor": "orch_worker.context.compactor" in sys.modules,
        "made": warm_connection.ssl_context.cache_info().currsize,
        "sockets": [link for link in links if link.startswith("socket:")],
        "tasks": len(os.listdir("/proc/self/task")),
    }
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as line:
        line.sendto(json.dumps(fields).encode(), address.partition("@")[2])
    return 0
