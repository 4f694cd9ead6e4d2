"""Finds all processes of a command: the processes in its session, and processes with its mark that left the session."""

from __future__ import annotations

import os
import signal
import time
from typing import Final, NamedTuple

__all__ = ["MARK", "ProcessDescendants"]

MARK: Final = "ORCH_CALL"
UNSURE_SECONDS: Final = 0.1
EXEC_SECONDS: Final = 2.0
"""Maximum number of seconds that exec takes on a very busy machine. A process in exec is not in a sleeping state."""
PAUSE: Final = 0.005
KERNEL_THREAD: Final = 0x00200000


class ProcessDescendants:
    """The descendants of the process `leader`, which was started in a new session with `MARK=mark`.

    Set `reaped` when the leader is reaped. Until then, the id of its process group is not reused.
    """

    def __init__(self, leader: int, mark: str) -> None:
        self.reaped = False
        self.killed: set[int] = set()
        """Pids of processes that were killed individually."""
        self._leader = leader
        self._mark = f"{MARK}={mark}".encode()
        stat = _stat(leader)
        self._start_time = stat.start_time if stat else 0
        self._unsure_since: float | None = None
        self._finished_pids: set[int] = {leader}
        """Pids of processes that have ended and cannot create processes. The leader is handled separately."""

    def signal(self, number: signal.Signals) -> None:
        """Send a signal to the process group of the leader."""
        if not self.reaped:
            try:
                os.killpg(self._leader, number)
            except (ProcessLookupError, PermissionError):
                pass

    def kill_all(self) -> bool:
        """Kill the group and all other descendants that are found.

        Return True if there may be more. In this case, call `kill_all` again.
        """
        found, wait_seconds = self._find()
        self.signal(signal.SIGKILL)
        for pid in found:
            try:
                os.kill(pid, signal.SIGKILL)
            except (ProcessLookupError, PermissionError):
                pass
        self.killed |= found
        if found or not wait_seconds:
            self._unsure_since = None
            return bool(found)
        now = time.monotonic()
        self._unsure_since = self._unsure_since or now
        return now - self._unsure_since < wait_seconds

    def reap(self, deadline: float) -> None:
        """Until `deadline` (time.monotonic), reap the killed and ended processes that this process adopted."""
        running = {pid for pid in self.killed if _is_running_child(pid)}
        while running and time.monotonic() < deadline:
            time.sleep(PAUSE)
            running = {pid for pid in running if _is_running_child(pid)}
        for pid in _child_pids():
            stat = _stat(pid)
            if stat is not None and stat.state == "Z" and stat.session == self._leader:
                _is_running_child(pid)

    def _find(self) -> tuple[set[int], float]:
        """Return the marked processes except the leader, and the time in seconds in which more processes may appear.

        During exec, a process has no environment. A process that ended after /proc was listed may have created another
        process that is not in the list. Without /proc, no process is found.
        """
        found, wait_seconds = set(), 0.0
        try:
            names = os.listdir("/proc")
        except OSError:
            return set(), 0.0
        for pid in map(int, filter(str.isdigit, names)):
            try:
                with open(f"/proc/{pid}/environ", "rb") as file:
                    environ = file.read()
            except (FileNotFoundError, ProcessLookupError):
                environ = b""  # Newer kernels report this error for ended processes and for kernel processes.
            except OSError:
                continue  # This is a process of another user.
            if self._mark in environ:
                found.add(pid)
            elif not environ and pid not in self._finished_pids:
                stat = _stat(pid)
                if stat is None:
                    is_newer = pid > self._leader or _last_pid() < self._leader
                else:
                    is_newer = stat.start_time >= self._start_time
                    if stat.is_kernel_thread or stat.state == "Z":
                        self._finished_pids.add(pid)
                    elif stat.session == self._leader:
                        found.add(pid)
                if is_newer:
                    is_in_exec = stat is not None and stat.state not in "SZ"
                    wait_seconds = max(wait_seconds, EXEC_SECONDS if is_in_exec else UNSURE_SECONDS)
        return found - {self._leader}, wait_seconds


class _Stat(NamedTuple):
    state: str
    session: int
    is_kernel_thread: bool
    start_time: int


def _stat(pid: int) -> _Stat | None:
    """Return the data in /proc/<pid>/stat, or None if the process has ended."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            fields = file.read().rpartition(b") ")[2].split()
        return _Stat(fields[0].decode(), int(fields[3]), bool(int(fields[6]) & KERNEL_THREAD), int(fields[19]))
    except (OSError, IndexError):
        return None


def _last_pid() -> int:
    """Return the pid that was assigned last, or 0 if the last pid is unknown.

    Pids start again from a low number after the maximum.
    """
    try:
        with open("/proc/loadavg", "rb") as file:
            return int(file.read().split()[-1])
    except (OSError, ValueError, IndexError):
        return 0


def _is_running_child(pid: int) -> bool:
    """If the process `pid` is an ended child, reap it. Return whether the process is a child that is still running."""
    try:
        return os.waitpid(pid, os.WNOHANG)[0] == 0
    except ChildProcessError:
        return False


def _child_pids() -> list[int]:
    found: list[int] = []
    try:
        for task in os.listdir("/proc/self/task"):
            with open(f"/proc/self/task/{task}/children", "rb") as file:
                found += map(int, file.read().split())
    except OSError:
        pass
    return found
