"""All processes of one command: those of its session, and those that left it but carry its mark."""

from __future__ import annotations

import os
import signal
import time
from typing import Final, NamedTuple

__all__ = ["MARK", "ProcessDescendants"]

MARK: Final = "ORCH_CALL"
UNSURE_SECONDS: Final = 0.1
TURNING_SECONDS: Final = 2.0
"""What turns into another program is not asleep meanwhile, and takes this long on a machine that is very busy."""
PAUSE: Final = 0.005
KERNEL_THREAD: Final = 0x00200000


class ProcessDescendants:
    """What descends from the process `leader`, which was started in a session of its own with `MARK=mark`.

    `reaped` is to be set when the leader is: until then the number of its group is its own.
    """

    def __init__(self, leader: int, mark: str) -> None:
        self.reaped = False
        self.killed: set[int] = set()
        """Those that were killed one by one."""
        self._leader = leader
        self._mark = f"{MARK}={mark}".encode()
        stat = _stat(leader)
        self._since = stat.began if stat else 0
        self._unsure_since: float | None = None
        self._spent: set[int] = {leader}
        """Those that were seen dead, and have made no process since; the leader is asked about when it has ended."""

    def signal(self, number: signal.Signals) -> None:
        """Signal the group of the leader."""
        if not self.reaped:
            try:
                os.killpg(self._leader, number)
            except (ProcessLookupError, PermissionError):
                pass

    def strike(self) -> bool:
        """Kill the group and all that is found beside it; say whether there may be more, to be struck again soon."""
        found, patience = self._find()
        self.signal(signal.SIGKILL)
        for pid in found:
            try:
                os.kill(pid, signal.SIGKILL)
            except (ProcessLookupError, PermissionError):
                pass
        self.killed |= found
        if found or not patience:
            self._unsure_since = None
            return bool(found)
        now = time.monotonic()
        self._unsure_since = self._unsure_since or now
        return now - self._unsure_since < patience

    def bury(self, deadline: float) -> None:
        """Reap what was killed, or ended by itself, and fell to this process; not later than `deadline` (monotonic)."""
        dying = {pid for pid in self.killed if _is_dying(pid)}
        while dying and time.monotonic() < deadline:
            time.sleep(PAUSE)
            dying = {pid for pid in dying if _is_dying(pid)}
        for pid in _children():
            stat = _stat(pid)
            if stat is not None and stat.state == "Z" and stat.session == self._leader:
                _is_dying(pid)

    def _find(self) -> tuple[set[int], float]:
        """Return the processes that carry the mark, but for the leader, and for how long others may that cannot show it
        yet: seconds, 0 where there are none.

        A process has no environment while it turns into another program. One that ended since /proc was listed may have
        made another one that is not on that list. Nothing is found where there is no /proc.
        """
        found, patience = set(), 0.0
        try:
            names = os.listdir("/proc")
        except OSError:
            return set(), 0.0
        for pid in map(int, filter(str.isdigit, names)):
            try:
                with open(f"/proc/{pid}/environ", "rb") as file:
                    environ = file.read()
            except (FileNotFoundError, ProcessLookupError):
                environ = b""  # newer kernels say so of the dead, and of their own
            except OSError:
                continue  # somebody else's
            if self._mark in environ:
                found.add(pid)
            elif not environ and pid not in self._spent:
                stat = _stat(pid)
                if stat is None:
                    young = pid > self._leader or _last_pid() < self._leader
                else:
                    young = stat.began >= self._since
                    if stat.is_kernels or stat.state == "Z":
                        self._spent.add(pid)
                    elif stat.session == self._leader:
                        found.add(pid)
                if young:
                    turning = stat is not None and stat.state not in "SZ"
                    patience = max(patience, TURNING_SECONDS if turning else UNSURE_SECONDS)
        return found - {self._leader}, patience


class _Stat(NamedTuple):
    state: str
    session: int
    is_kernels: bool
    began: int


def _stat(pid: int) -> _Stat | None:
    """Return what /proc/<pid>/stat says, None when the process is gone."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            fields = file.read().rpartition(b") ")[2].split()
        return _Stat(fields[0].decode(), int(fields[3]), bool(int(fields[6]) & KERNEL_THREAD), int(fields[19]))
    except (OSError, IndexError):
        return None


def _last_pid() -> int:
    """Return the number of the process that was made last; numbers begin anew some day. 0 when nobody knows."""
    try:
        with open("/proc/loadavg", "rb") as file:
            return int(file.read().split()[-1])
    except (OSError, ValueError, IndexError):
        return 0


def _is_dying(pid: int) -> bool:
    """Reap the process `pid` if it is dead and ours; say whether it is ours and not dead yet."""
    try:
        return os.waitpid(pid, os.WNOHANG)[0] == 0
    except ChildProcessError:
        return False


def _children() -> list[int]:
    found: list[int] = []
    try:
        for task in os.listdir("/proc/self/task"):
            with open(f"/proc/self/task/{task}/children", "rb") as file:
                found += map(int, file.read().split())
    except OSError:
        pass
    return found
