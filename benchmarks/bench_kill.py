"""The processes that remain of fifty workers after kill -9 of their root.

Each case is another state of the workers and of the program.
"""

from __future__ import annotations

import json
import os
import selectors
import signal
import subprocess
import sys
from collections.abc import Callable, Iterable
from contextlib import ExitStack
from pathlib import Path
from statistics import median
from time import monotonic, perf_counter, sleep

import harness
from harness import Args, Row

WORKERS = 50
UP_SECONDS = 60.0
GIVE_UP_SECONDS = 10.0
ROOT_PROGRAM = str(Path(__file__).with_name("doomed_root.py"))

CASES = {
    "idle": "idle",
    "held": "in C, holding the interpreter lock",
    "stopped": "SIGSTOPped",
    "tools": "at work on tools that have left session and parent",
    "forked": "idle, the program forked before",
    "forked_in_c": "idle, the program forked before, in C",
}


def stat(pid: int) -> list[str]:
    """Return the fields of `/proc/<pid>/stat` from the third on (state, parent, ...).

    Return [] if the process is gone.
    """
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2].split()
    except OSError:
        return []


def descendants(root: int) -> set[int]:
    """Return the process ids of all processes below `root`."""
    parents = {int(name): stat(int(name)) for name in os.listdir("/proc") if name.isdigit()}
    found, grown = {root}, True
    while grown:
        below = {pid for pid, fields in parents.items() if fields and int(fields[1]) in found}
        grown = not below <= found
        found |= below
    return found - {root}


def until_all(pids: Iterable[int], holds: Callable[[list[str]], bool]) -> None:
    """Wait until the stat fields of each process satisfy `holds`. Raises TimeoutError after a minute."""
    deadline = monotonic() + UP_SECONDS
    for pid in pids:
        while not holds(stat(pid)):
            if monotonic() > deadline:
                raise TimeoutError(f"process {pid} did not get where it was sent: {stat(pid)}")
            sleep(0.005)


def prepare(case: str, workers: list[int]) -> None:
    """Bring the workers into the state of the case `case`."""
    if case == "stopped":
        for pid in workers:
            os.kill(pid, signal.SIGSTOP)
        until_all(workers, lambda fields: fields[0] == "T")
    if case == "held":
        ticks = {pid: int(stat(pid)[11]) for pid in workers}
        for pid in workers:
            os.kill(pid, signal.SIGUSR2)
        # A worker that uses CPU time has entered the loop that never ends.
        for pid in workers:
            until_all([pid], lambda fields, before=ticks[pid]: int(fields[11]) > before + 1)  # type: ignore[misc]


def with_tools(root: int, workers: int) -> set[int]:
    """Return all processes below `root` as soon as each worker's tool has left its session.

    Raises TimeoutError after a minute.
    """
    deadline = monotonic() + UP_SECONDS
    while True:
        below = descendants(root)
        # A process that has left its session and its parent leads its own session and sleeps.
        left = [pid for pid in below if (fields := stat(pid)) and int(fields[3]) == pid and name(pid) == "sleep"]
        if len(left) >= workers:
            return below
        if monotonic() > deadline:
            raise TimeoutError(f"{len(left)} of {workers} tools have left")
        sleep(0.02)


def name(pid: int) -> str:
    """Return the name of the program that a process runs, "" if the process is gone."""
    try:
        return Path(f"/proc/{pid}/comm").read_text().strip()
    except OSError:
        return ""


def gone(descriptors: Iterable[int]) -> tuple[float, int]:
    """Return the milliseconds until all processes have ended, and the number of processes that remain after one second.

    `descriptors` are the pidfds of the processes.
    """
    begin, left = perf_counter(), 0
    with selectors.DefaultSelector() as selector:
        for descriptor in descriptors:
            selector.register(descriptor, selectors.EVENT_READ)
        # Wait at most one second first, and count the processes that remain at that time.
        for seconds in (1.0, GIVE_UP_SECONDS):
            while selector.get_map() and (ahead := begin + seconds - perf_counter()) > 0:
                for key, _ in selector.select(ahead):
                    selector.unregister(key.fileobj)
            if seconds == 1.0:
                left = len(selector.get_map())
    return 1000 * (perf_counter() - begin), left


def kill_once(home: Path, case: str) -> tuple[float, int]:
    """Start a root, bring it into the state `case`, and kill it.

    Return the result of `gone` for all processes below the root.
    """
    command = [sys.executable, ROOT_PROGRAM, str(home), case, str(WORKERS)]
    with ExitStack() as stack:
        root = stack.enter_context(
            subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True)
        )
        stack.callback(root.kill)
        assert root.stdout is not None
        line = root.stdout.readline()
        if not line:
            raise RuntimeError(f"the root did not come up (exit code {root.wait(UP_SECONDS)})")
        said = json.loads(line)
        below = descendants(root.pid) - set(said["spared"])
        if not set(said["workers"]) <= below:
            raise RuntimeError("a worker is not below its root")
        if case == "tools":
            below = with_tools(root.pid, len(said["workers"])) - set(said["spared"])
        descriptors = {pid: os.pidfd_open(pid) for pid in below}
        for descriptor in descriptors.values():
            stack.callback(os.close, descriptor)
        spared = [os.pidfd_open(pid) for pid in said["spared"]]
        for descriptor in [*spared, *descriptors.values()]:
            stack.callback(kill, descriptor)
        prepare(case, said["workers"])
        root.kill()
        return gone(descriptors.values())


def kill(descriptor: int) -> None:
    """Kill the process of a pidfd, unless the process has ended."""
    try:
        signal.pidfd_send_signal(descriptor, signal.SIGKILL)
    except ProcessLookupError:
        pass


def measure(args: Args) -> list[Row]:
    """Kill a root for each case and round.

    The row for remaining processes shows the worst round. The row for the time shows the median.
    """
    rows, most_left = [], 0
    with harness.scratch() as folder:
        for case, title in CASES.items():
            results = [kill_once(folder / f"{case}{number}", case) for number in range(args.rounds)]
            most_left = max(most_left, *(left for _, left in results))
            figure = f"kill -9 of the root, {WORKERS} workers {title}: until none is left (ms)"
            rows.append(harness.counted(figure, median(ms for ms, _ in results), must="<= 1000", aim="<= 250"))
    figure = "processes left 1 s after kill -9 of the root, the worst of all these"
    return [*rows, harness.counted(figure, most_left, must="== 0")]


if __name__ == "__main__":
    harness.main(measure, affinity="all", rounds=5, quick_rounds=1)
