"""File descriptors that belong to this process and are closed in its forks.

The user's program may fork at any time. If a child process inherited the write end of a lifeline, the worker would
continue to run after the end of its root. Therefore registered descriptors are closed in every child that Python forks.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from typing import Final, TypeVar

from orch_protocol.core.errors import ConcurrencyLimitError, LaunchError
from orch_worker.system.memory_limit import REMEDY, address_space_limit, free_address_space

__all__ = ["is_registered", "received_packets", "register", "release", "require_room"]

DESCRIPTORS_PER_AGENT: Final = 4
"""Number of descriptors that the launch of an agent needs.
They are both ends of the birth pipe, a pidfd and a connection.
"""
RESERVED_DESCRIPTORS: Final = 24
"""Number of descriptors reserved for other purposes, such as a shim, two zygotes and files that are open for a short
time.
"""
ROOT_THREADS: Final = 5
"""Number of threads of a root: two of ZeroMQ, others for files and requests. Each reserves a stack."""
DEFAULT_STACK: Final = 8 << 20
"""Size of a thread's stack if there is no limit."""
ROOT_BYTES: Final = 16 << 20
"""Address space that a root needs besides the stacks of its threads."""
SUFFICIENT_LIMIT: Final = 1 << 16
"""A limit that no number of agents on one machine can reach."""

Descriptor = TypeVar("Descriptor", int, socket.socket)

_descriptors: set[int | socket.socket] = set()
_registered = False


def register(descriptor: Descriptor) -> Descriptor:
    """Register and return `descriptor`. Only this process uses the descriptor, and only `release` closes it."""
    global _registered
    if not _registered:
        os.register_at_fork(after_in_child=_release_all)
        _registered = True
    _descriptors.add(descriptor)
    return descriptor


def is_registered(descriptor: int | socket.socket) -> bool:
    """Return whether `descriptor` is registered, and therefore open."""
    return descriptor in _descriptors


def release(descriptor: int | socket.socket) -> None:
    """Close `descriptor`. Do nothing if `descriptor` is not registered.

    After its release, and in a fork of this process, a descriptor is not registered.
    """
    if descriptor in _descriptors:
        _descriptors.discard(descriptor)
        if isinstance(descriptor, int):
            os.close(descriptor)
        else:
            descriptor.close()


def received_packets(control: socket.socket, size: int) -> Iterator[tuple[bytes, list[int]]]:
    """Yield each packet that waits on the registered socket `control`, with its descriptor, if any.

    `size` is the maximum size of a packet, in bytes. The last packet is b"" if the peer has closed the connection.
    """
    while is_registered(control):
        try:
            packet, descriptors, _, _ = socket.recv_fds(control, size, 1, socket.MSG_CMSG_CLOEXEC)
        except BlockingIOError:
            return
        except ConnectionResetError:
            packet, descriptors = b"", []
        yield packet, descriptors
        if not packet:
            return


def require_room(agents: int = 0) -> None:
    """Raise an error unless enough file descriptors are left to launch `agents` agents. If `agents` is 0, check for the
    root, which also needs address space for the stacks of its threads.

    Raises ConcurrencyLimitError for agents, LaunchError for the root. Without this check, a connecting worker could use
    up the descriptors, or a thread could not be started, and ZeroMQ would abort the user's program.
    """
    import resource

    if not agents and (free := free_address_space()) is not None:
        stack = resource.getrlimit(resource.RLIMIT_STACK)[0]
        least = ROOT_THREADS * (DEFAULT_STACK if stack == resource.RLIM_INFINITY else stack) + ROOT_BYTES
        if free < least:
            raise LaunchError(
                f"cannot start an orchestrator: {free >> 20} MiB of the address space of process {os.getpid()} are "
                f"free, and {least >> 20} MiB are needed (its limit is {(address_space_limit() or 0) >> 20} MiB): "
                f"{REMEDY}"
            )

    limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    if limit == resource.RLIM_INFINITY or limit >= SUFFICIENT_LIMIT:
        return
    try:
        used = len(os.listdir("/dev/fd")) - 1
    except OSError:  # /dev/fd does not exist, or there is no descriptor for listing it
        used = limit
    needed = DESCRIPTORS_PER_AGENT * agents + RESERVED_DESCRIPTORS
    if used + needed <= limit:
        return
    why = (
        f"{used} of at most {limit} file descriptors of process {os.getpid()} are in use, {needed} more are needed: "
        "raise the limit, for example with `ulimit -n 1024`"
    )
    if agents:
        raise ConcurrencyLimitError(f"cannot launch {agents} agents: {why}, or wait until other agents have ended")
    raise LaunchError(f"cannot start an orchestrator: {why}")


def _release_all() -> None:
    for descriptor in list(_descriptors):
        release(descriptor)
