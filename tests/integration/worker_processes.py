"""Stand-in workers, a socket on which they report, and watchers of processes."""

from __future__ import annotations

import asyncio
import json
import os
import select
import signal
import socket
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from orch import AsyncOrchestrator
from orch.processes.base import LaunchRequest, WorkerProcess
from orch.processes.zygote import ZygoteLauncher
from orch_protocol.agent.spec import Template, WorkerBirth
from orch_worker.system import linux

HERE = Path(__file__).parent
ENTRY = "fake_worker:main"
DEADLINE = 20.0
Launch = Callable[..., Any]


class Ear:
    """A datagram socket on which stand-in workers report that they run."""

    def __init__(self, folder: Path) -> None:
        self.path = str(folder / "ear")
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._socket.bind(self.path)
        self._socket.settimeout(DEADLINE)

    def hear(self, count: int = 1) -> list[dict[str, Any]]:
        """Return the reports of the next `count` workers, sorted by agent id."""
        heard = [json.loads(self._socket.recv(1 << 16)) for _ in range(count)]
        return sorted(heard, key=lambda told: str(told["agent"]))

    async def listen(self) -> dict[str, Any]:
        """Return the report of the next worker. The event loop continues to run."""
        return (await asyncio.to_thread(self.hear))[0]

    def close(self) -> None:
        """Stop listening."""
        self._socket.close()


@pytest.fixture
def entries(monkeypatch: pytest.MonkeyPatch) -> None:
    """Add the stand-in to PYTHONPATH, so that every process of orch can import it."""
    roots = [str(HERE.parents[1] / root) for root in ("orchestrator", "worker", "protocol")]
    monkeypatch.setenv("PYTHONPATH", ":".join([*roots, str(HERE)]))


@pytest.fixture
def ear(tmp_path: Path) -> Iterator[Ear]:
    """A socket on which stand-in workers report."""
    ear = Ear(tmp_path)
    yield ear
    ear.close()


@pytest.fixture
async def launcher(tmp_path: Path) -> AsyncIterator[ZygoteLauncher]:
    """A started launcher that forks. After the test, no process and no descriptor is left."""
    before = descriptors()
    launcher = ZygoteLauncher("run-1", tmp_path, entry=ENTRY)
    await launcher.start()
    with Watch(below(os.getpid())) as watch:
        yield launcher
        await launcher.stop()
        watch.wait()
    assert descriptors() == before


class Watch:
    """Processes by pidfd. Their ends can be awaited, even if another process reaps them."""

    def __init__(self, pids: set[int]) -> None:
        self._pidfds = {}
        for pid in pids:
            try:
                self._pidfds[pid] = os.pidfd_open(pid)
            except ProcessLookupError:
                pass  # the process has already ended

    def __enter__(self) -> Watch:
        return self

    def __exit__(self, *_: object) -> None:
        for pidfd in self._pidfds.values():
            linux.kill(pidfd)
        try:
            self.wait()
        finally:
            for pidfd in self._pidfds.values():
                os.close(pidfd)

    def wait(self, seconds: float = DEADLINE) -> None:
        """Wait until every process has ended."""
        deadline = time.monotonic() + seconds
        while left := self.left():
            poller = select.poll()
            poller.register(self._pidfds[left[0]], select.POLLIN)
            if not poller.poll(max(0.0, deadline - time.monotonic()) * 1000):
                raise AssertionError(f"{len(left)} of {len(self._pidfds)} processes are left: {left}")

    def left(self) -> list[int]:
        """Return the ids of the processes that have not ended."""
        poller = select.poll()
        for pidfd in self._pidfds.values():
            poller.register(pidfd, select.POLLIN)
        ended = {pidfd for pidfd, _ in poller.poll(0)}
        return [pid for pid, pidfd in self._pidfds.items() if pidfd not in ended]


def descriptors() -> set[str]:
    """Return the open descriptors of this process, each with its target."""
    found = set()
    for number in os.listdir("/proc/self/fd"):
        try:
            found.add(f"{number}: {os.readlink(f'/proc/self/fd/{number}')}")
        except FileNotFoundError:
            pass  # this descriptor was used for the listing
    return found


def children(pid: int) -> list[int]:
    """Return the pids of the children of `pid`."""
    return [int(found) for found in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def below(pid: int) -> set[int]:
    """Return the process ids of the shim of the process `pid`, and of everything below the shim."""
    shims = [child for child in children(pid) if b"\0shim\0" in Path(f"/proc/{child}/cmdline").read_bytes()]
    found: set[int] = set()
    while shims:
        found.add(pid := shims.pop())
        shims += children(pid)
    return found


def shim_of(pid: int) -> int:
    """Return the pid of the shim of the process `pid`."""
    return next(child for child in children(pid) if b"\0shim\0" in Path(f"/proc/{child}/cmdline").read_bytes())


def request(
    folder: Path, what: str, agent: str = "a1", ear: Ear | None = None, template: Template = "lean"
) -> LaunchRequest:
    """Return a launch request for a stand-in worker that does `what`."""
    address = what + (f"@{ear.path}" if ear else "")
    birth = WorkerBirth(b"token", {"KEY": "canary"})
    return LaunchRequest(agent, 3, b"ident", address, birth, template, str(folder / f"{agent}.log"), str(folder))


def stop(pid: int) -> None:
    """Stop the process `pid`, and return when it has stopped."""
    os.kill(pid, signal.SIGSTOP)
    deadline = time.monotonic() + DEADLINE
    while Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2][0] != "T":
        assert time.monotonic() < deadline, pid
        time.sleep(0.005)


async def ended(worker: WorkerProcess) -> int | None:
    """Wait until `worker` has ended, and return its exit code."""
    return await asyncio.wait_for(worker.ended, DEADLINE)


async def zygote_pid(launcher: ZygoteLauncher, folder: Path) -> int:
    """Return the process id of the lean zygote after the zygote is ready."""
    worker = await launcher.launch(request(folder, "idle", "probe"))
    zygote = parent_of(worker.pid)
    worker.kill()
    await ended(worker)
    return zygote


async def eventually(condition: Callable[[], bool]) -> None:
    """Return when `condition()` is true."""
    deadline = time.monotonic() + DEADLINE
    while not condition():
        assert time.monotonic() < deadline
        await asyncio.sleep(0.005)


def is_running(pid: int) -> bool:
    """Return whether the process `pid` exists and has not ended."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2][0] not in "ZX"
    except (FileNotFoundError, ProcessLookupError):
        return False


def parent_of(pid: int) -> int:
    """Return the pid of the parent of `pid`."""
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2].split()[1])


@pytest.fixture
def root(tmp_path: Path, ear: Ear) -> Iterator[Launch]:
    """A function that runs a program with workers.

    The function returns the program, its workers and its other processes.
    """
    programs = []

    def run(what: str, count: int, *options: str) -> tuple[subprocess.Popen[bytes], Watch, Watch]:
        argv = [sys.executable, str(HERE / "user_program.py"), str(tmp_path), ear.path, what, str(count), *options]
        program = subprocess.Popen(argv, stdout=subprocess.PIPE)
        programs.append(program)
        assert program.stdout is not None
        pids = json.loads(program.stdout.readline())
        watches = Watch(set(pids["workers"])), Watch({*pids["others"], *([pids["child"]] if "child" in pids else [])})
        opened.extend(watches)
        return program, *watches

    opened: list[Watch] = []
    yield run
    for program in programs:
        program.kill()
        program.wait()
        assert program.stdout is not None
        program.stdout.close()
    for watch in opened:
        with watch:
            pass


END = {"tool": "end_process", "input": {}}
"""A call of the tool that `register_end` registers."""


def register_end(o: AsyncOrchestrator) -> None:
    """Register a tool that kills the worker of the agent that called it last, which must be the only busy agent."""

    def end_process() -> str:
        """End the process of this agent."""
        for id, (_, process) in o.supervisor.workers.processes.items():
            if o.supervisor.tree.agents[id].status == "busy":
                process.kill()
        time.sleep(DEADLINE)  # the call ends with the process
        return ""

    o.register_tool(end_process)
