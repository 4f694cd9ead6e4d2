"""Who is at the other end of a Unix socket, according to the kernel: process, user, and the agent it belongs to.

A command that an agent runs is a descendant of the agent's worker, which is a descendant of the run's shim. Worker and
shim are subreapers, and a process cannot choose its ancestors. So the ancestors of a peer tell whether it is the user
(None), an agent of this run (its id), or neither, which is refused.

A command can end its worker and its shim, and so leave them. Commands whose paths are hidden are in a user namespace of
their own, which a process cannot leave; so a user is only who shares the daemon's.
"""

from __future__ import annotations

import errno
import os
import select
import socket
import struct
import sys
from collections.abc import Callable, Iterator
from itertools import pairwise
from typing import Final, NamedTuple

from orch_protocol.core.errors import ProtocolError

__all__ = ["AgentOf", "Process", "agent_of_peer", "classify", "peer_of", "read_process"]

# Of macOS, for which Python has no names: struct xucred begins with a version and the uid.
SOL_LOCAL = 0
LOCAL_PEERCRED, LOCAL_PEERPID = 1, 2
XUCRED_BYTES = 76

SO_PEERPIDFD: Final = getattr(socket, "SO_PEERPIDFD", 77)  # Linux 6.5; Python has no name for it
ATTEMPTS: Final = 5
MOST_ANCESTORS: Final = 1000
UNSEEN: Final = -1
"""The start time of a process that cannot be seen."""
ELSEWHERE: Final = "To use orch as yourself, run the command in another terminal"

AgentOf = Callable[[int], str | None]
"""Returns the id of the agent whose worker has this pid, None when no worker of this run has."""


class Process(NamedTuple):
    """A process: `started` is its start time in clock ticks since boot, `is_orch` whether it is a shim, zygote or
    worker of any run."""

    pid: int
    parent: int
    started: int
    is_orch: bool


Lookup = Callable[[int], Process | None]
"""Returns a process by its pid, None when it has ended or cannot be seen."""


def peer_of(connected: socket.socket) -> tuple[int, int]:
    """Return pid and uid of who connected, or listened. Raises OSError where the kernel does not say."""
    if hasattr(socket, "SO_PEERCRED"):
        pid, uid, _ = struct.unpack("3i", connected.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))
        return pid, uid
    _, uid = struct.unpack("Ii", connected.getsockopt(SOL_LOCAL, LOCAL_PEERCRED, XUCRED_BYTES)[:8])
    (pid,) = struct.unpack("i", connected.getsockopt(SOL_LOCAL, LOCAL_PEERPID, 4))
    return pid, uid


def agent_of_peer(connected: socket.socket, agent_of: AgentOf) -> str | None:
    """Return the id of the agent on whose behalf the peer of `connected` acts, None for the user.

    Raises ProtocolError for a peer that may not use this daemon. Only Linux lists ancestors that a process cannot
    leave; on other systems every peer is the user.
    """
    if sys.platform != "linux":
        return None
    pid, _ = peer_of(connected)
    if pid <= 0:
        raise ProtocolError(f"refused: the process that connected is in another pid namespace. {ELSEWHERE}")
    try:
        pidfd = _pidfd_of(connected, pid)
    except OSError:
        raise _gone(pid) from None
    try:
        return _classify_stable(pid, pidfd, agent_of)
    finally:
        os.close(pidfd)


def classify(peer: int, own: int, lookup: Lookup, agent_of: AgentOf) -> str | None:
    """Return the id of the agent on whose behalf the process `peer` acts, None for the user.

    `own` is the daemon's pid. Processes of orch that are ancestors of the daemon itself do not count: an agent, or a
    test suite that an agent runs, may start a daemon of its own. Raises ProtocolError.
    """
    around = {(each.pid, each.started) for each in _ancestors(own, lookup)}
    for process in _ancestors(peer, lookup):
        if (process.pid, process.started) in around:
            return None
        if (agent := agent_of(process.pid)) is not None:
            return agent
        if process.is_orch:
            raise ProtocolError(
                f"refused: process {peer} was started by an agent of another run, or by an agent whose worker has "
                f"ended. {ELSEWHERE}"
            )
    return None


def read_process(pid: int, proc: str = "/proc") -> Process | None:
    """Return the process `pid` as /proc tells, None when it has ended or cannot be seen."""
    try:
        with open(f"{proc}/{pid}/stat", "rb") as file:
            fields = file.read().rpartition(b") ")[2].split()
        with open(f"{proc}/{pid}/cmdline", "rb") as file:
            arguments = file.read().split(b"\0")
    except (FileNotFoundError, PermissionError, ProcessLookupError):
        return None
    is_orch = (b"-m", b"orch_worker") in pairwise(arguments)
    return Process(pid, int(fields[1]), int(fields[19]), is_orch)


def _classify_stable(pid: int, pidfd: int, agent_of: AgentOf) -> str | None:
    """Classify the process `pid` while it and its ancestors stay the same: a parent may end, its pid be reused."""
    ended = select.poll()
    ended.register(pidfd, select.POLLIN)
    for _ in range(ATTEMPTS):
        seen: dict[int, Process | None] = {}

        def lookup(pid: int, seen: dict[int, Process | None] = seen) -> Process | None:
            if pid not in seen:
                seen[pid] = read_process(pid)
            return seen[pid]

        try:
            agent, refusal = classify(pid, os.getpid(), lookup, agent_of), None
        except ProtocolError as error:
            agent, refusal = None, error
        namespaces = _user_namespace(pid), _user_namespace(os.getpid())
        unchanged = all(read_process(each) == process for each, process in seen.items())
        if ended.poll(0):
            raise _gone(pid)
        if unchanged:
            if refusal is not None:
                raise refusal
            if agent is None and namespaces[0] != namespaces[1]:
                raise ProtocolError(
                    f"refused: process {pid} is in another user namespace than the daemon, as commands of agents and "
                    f"programs in containers are. {ELSEWHERE}"
                )
            return agent
    raise ProtocolError(f"refused: the ancestors of process {pid} kept changing; try again. {ELSEWHERE}")


def _user_namespace(pid: int) -> int:
    """Return what identifies the user namespace of the process `pid`, -1 for one that cannot be looked into."""
    try:
        return os.stat(f"/proc/{pid}/ns/user").st_ino
    except OSError:
        return -1


def _ancestors(pid: int, lookup: Lookup) -> Iterator[Process]:
    """Yield the process `pid`, then its parent, and so on to the top. Raises ProtocolError when `pid` is not found.

    Where /proc is mounted with hidepid, processes of other users cannot be seen, nor can those that hide their memory:
    the first such ancestor is the last one that is known.
    """
    process = lookup(pid)
    if process is None:
        raise _gone(pid)
    for _ in range(MOST_ANCESTORS):
        yield process
        if process.parent == 0:
            return
        process = lookup(process.parent) or Process(process.parent, 0, UNSEEN, is_orch=False)
    raise ProtocolError(f"refused: process {pid} has more than {MOST_ANCESTORS} ancestors. {ELSEWHERE}")


def _pidfd_of(connected: socket.socket, pid: int) -> int:
    """Return a pidfd of the process that connected. Raises OSError when it has ended.

    Before Linux 6.5 it is opened by number: a process that ended between its connect and now is then told from one
    that reused its pid only as long as pids do not wrap around in that time.
    """
    try:
        return int(struct.unpack("i", connected.getsockopt(socket.SOL_SOCKET, SO_PEERPIDFD, 4))[0])
    except OSError as error:
        if error.errno != errno.ENOPROTOOPT:
            raise
    return os.pidfd_open(pid)


def _gone(pid: int) -> ProtocolError:
    return ProtocolError(f"refused: process {pid} ended, so it is unknown who started it. {ELSEWHERE}")
