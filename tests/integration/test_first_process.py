"""Roots with the process id 1, as in a container: they handle signals, and reap orphans."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

APART = ["unshare", "--pid", "--fork", "--mount-proc", "--kill-child"]
SECONDS = 40
PROGRAM = """
import glob, os, signal, sys, time
from orch import Orchestrator, ScriptedBackend

def zombies():
    stats = [open(path).read() for path in glob.glob("/proc/[0-9]*/stat")]
    return [stat for stat in stats if stat.rpartition(") ")[2].startswith("Z")]

detached = {"tool": "bash", "input": {"command": "setsid sleep 300 & (sleep 301 &); echo hi"}}
with Orchestrator(home=sys.argv[1], env={}) as o:
    agent = o.spawn("x", tools=["bash"], backend=ScriptedBackend([detached, "one", "two"]))
    print(os.getpid(), agent.query("go").text)
    os.kill(agent.pid, signal.SIGKILL)
    print(agent.query("again").text)
    below = [int(pid) for path in glob.glob("/proc/self/task/*/children") for pid in open(path).read().split()]
    os.kill(below[0], signal.SIGKILL)
    deadline = time.monotonic() + 10
    while agent.state().status == "idle" and time.monotonic() < deadline:
        time.sleep(0.01)
    print(o.spawn("y", backend=ScriptedBackend(["three"])).query("?").text)
    while zombies() and time.monotonic() < deadline:
        time.sleep(0.01)
    print(len(zombies()))
"""


def permitted() -> bool:
    """Return whether this system allows a new namespace of process ids."""
    try:
        return subprocess.run([*APART, "true"], capture_output=True, timeout=SECONDS, check=False).returncode == 0
    except OSError:
        return False


needs_namespaces = pytest.mark.skipif(not permitted(), reason="no namespace of processes can be made here")


@needs_namespaces
def test_program_as_pid_1_reaps_inherited_processes(tmp_path: Path) -> None:
    """After its shim was killed, the program can use agents, and no zombie remains."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    argv = [*APART, sys.executable, "-c", PROGRAM, str(tmp_path)]
    done = subprocess.run(argv, env=environment, capture_output=True, timeout=SECONDS, check=False)
    assert (done.returncode, done.stdout.split(), done.stderr) == (0, [b"1", b"one", b"two", b"three", b"0"], b"")


@needs_namespaces
def test_daemon_as_pid_1_ends_on_sigterm(tmp_path: Path) -> None:
    """The daemon handles SIGTERM, because the kernel delivers only handled signals to the process with id 1."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "ORCH_HOME": str(tmp_path)}
    with subprocess.Popen([*APART, sys.executable, "-P", "-m", "orch.daemon.daemon"], env=environment) as outside:
        deadline = time.monotonic() + SECONDS
        while not (tmp_path / "daemon" / "control.sock").exists():
            assert time.monotonic() < deadline
            assert outside.poll() is None
            time.sleep(0.01)
        inside = int(Path(f"/proc/{outside.pid}/task/{outside.pid}/children").read_text())
        os.kill(inside, signal.SIGTERM)
        assert outside.wait(SECONDS) == 0
