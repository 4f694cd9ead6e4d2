"""Finds the process, user and agent at the other end of a Unix socket. The kernel reports the process and the user.

A command of an agent is a descendant of the agent's worker, and the worker is a descendant of the run's shim. Worker
and shim are subreapers, and a process cannot choose its ancestors. Therefore the ancestors of a peer show whether the
peer is the user (None) or an agent of this run (its id). Any other peer is refused.

A command can kill its worker and its shim, and then no longer has these ancestors. However, a command with hidden paths
runs in its own user namespace, which a process cannot leave. Therefore only a process in the daemon's user namespace
counts as the user.
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

# Constants of macOS that Python lacks. struct xucred begins with a version and the uid.
SOL_LOCAL = 0
LOCAL_PEERCRED, LOCAL_PEERPID = 1, 2
XUCRED_BYTES = 76

SO_PEERPIDFD: Final = getattr(socket, "SO_PEERPIDFD", 77)  # Linux 6.5; Python has no name for it
ATTEMPTS: Final = 5
MAX_ANCESTORS: Final = 1000
UNSEEN: Final = -1
"""The start time used for an invisible process."""
ELSEWHERE: Final = "To use orch as yourself, run the command in another terminal"

AgentOf = Callable[[int], str | None]
"""Returns the id of the agent whose worker has this pid. Returns None if no worker of this run has this pid."""


class Process(NamedTuple):
    """A process.

    `started` is its start time in clock ticks since boot; `is_orch` is true for a shim, zygote or worker.
    """

    pid: int
    parent: int
    started: int
    is_orch: bool


Lookup = Callable[[int], Process | None]
"""Returns a process by its pid. Returns None if the process has ended or is not visible."""


def peer_of(connected: socket.socket) -> tuple[int, int]:
    """Return the pid and uid of the process at the other end.

    This process has connected to the socket or is listening on the socket. Raises OSError if the kernel does not report
    them.
    """
    if hasattr(socket, "SO_PEERCRED"):
        pid, uid, _ = struct.unpack("3i", connected.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))
        return pid, uid
    _, uid = struct.unpack("Ii", connected.getsockopt(SOL_LOCAL, LOCAL_PEERCRED, XUCRED_BYTES)[:8])
    (pid,) = struct.unpack("i", connected.getsockopt(SOL_LOCAL, LOCAL_PEERPID, 4))
    return pid, uid


def agent_of_peer(connected: socket.socket, agent_of: AgentOf) -> str | None:
    """Return the id of the agent for which the peer of `connected` acts. Return None for the user.

    Raises ProtocolError for a peer that may not use this daemon. Only Linux has subreapers. On other systems every peer
    counts as the user.
    """
    if sys.platform != "linux":
        return None
    pid, _ = peer_of(connected)
    if pid <= 0:
        raise ProtocolError(f"refused: the process that connected is in another pid namespace. {ELSEWHERE}")
    try:
        pidfd = _pidfd_of(connected, pid)
    except OSError:
        raise _ended_error(pid) from None
    try:
        return _classify_stable(pid, pidfd, agent_of)
    finally:
        os.close(pidfd)


def classify(peer_pid: int, own_pid: int, lookup: Lookup, agent_of: AgentOf) -> str | None:
    """Return the id of the agent for which the process `peer_pid` acts. Return None for the user.

    `own_pid` is the daemon's pid. Ancestors of the daemon itself are ignored, even if they are orch processes. The
    reason is that an agent, or a test suite run by an agent, may start a separate daemon. Raises ProtocolError.
    """
    own_ancestors = {(each.pid, each.started) for each in _ancestors(own_pid, lookup)}
    for process in _ancestors(peer_pid, lookup):
        if (process.pid, process.started) in own_ancestors:
            return None
        if (agent := agent_of(process.pid)) is not None:
            return agent
        if process.is_orch:
            raise ProtocolError(
                f"refused: process {peer_pid} was started by an agent of another run, or by an agent whose worker has "
                f"ended. {ELSEWHERE}"
            )
    return None


def read_process(pid: int, proc: str = "/proc") -> Process | None:
    """Return the process `pid` from /proc. Return None if the process has ended or is not visible."""
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
    """Classify the process `pid`.

    If one of its ancestors has changed, classify the process again, because a pid may be reused.
    """
    exit_poll = select.poll()
    exit_poll.register(pidfd, select.POLLIN)
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
        if exit_poll.poll(0):
            raise _ended_error(pid)
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
    """Return the identity of the user namespace of the process `pid`. Return -1 if it cannot be read."""
    try:
        return os.stat(f"/proc/{pid}/ns/user").st_ino
    except OSError:
        return -1


def _ancestors(pid: int, lookup: Lookup) -> Iterator[Process]:
    """Yield the process `pid` and then its ancestors, beginning with the parent.

    Raises ProtocolError if `pid` is not found. If /proc is mounted with hidepid, processes of other users are not
    visible. Processes that hide their memory are not visible either. The iteration ends with the first ancestor that is
    not visible.
    """
    process = lookup(pid)
    if process is None:
        raise _ended_error(pid)
    for _ in range(MAX_ANCESTORS):
        yield process
        if process.parent == 0:
            return
        process = lookup(process.parent) or Process(process.parent, 0, UNSEEN, is_orch=False)
    raise ProtocolError(f"refused: process {pid} has more than {MAX_ANCESTORS} ancestors. {ELSEWHERE}")


def _pidfd_of(connected: socket.socket, pid: int) -> int:
    """Return a pidfd of the process that connected. Raises OSError when the process has ended.

    Before Linux 6.5 the pidfd is opened by number. If the process ended after connecting, another process may have its
    pid. orch detects this, except when pids wrap around in this short time.
    """
    try:
        return int(struct.unpack("i", connected.getsockopt(socket.SOL_SOCKET, SO_PEERPIDFD, 4))[0])
    except OSError as error:
        if error.errno != errno.ENOPROTOOPT:
            raise
    return os.pidfd_open(pid)


def _ended_error(pid: int) -> ProtocolError:
    return ProtocolError(f"refused: process {pid} ended, so it is unknown who started it. {ELSEWHERE}")
