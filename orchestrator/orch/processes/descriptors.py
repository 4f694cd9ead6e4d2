"""Descriptors that belong to this process and to no fork of it.

The user's program may fork at any time. A child that kept the write end of a lifeline would keep the worker alive
after its root; so what is held here is closed in every child that Python forks.
"""

from __future__ import annotations

import os
import socket
from typing import Final, TypeVar

from orch_protocol.core.errors import ConcurrencyLimitError, LaunchError

__all__ = ["is_registered", "register", "release", "require_room"]

EACH: Final = 4
"""What an agent takes that is being launched: two ends of its birth pipe, its pidfd, its connection."""
SPARE: Final = 24
"""What is left to everything else: a shim, two zygotes, files that are read for a moment."""
PLENTY: Final = 1 << 16
"""With so many it would take more agents than any machine has processes for."""

Descriptor = TypeVar("Descriptor", int, socket.socket)

_held: set[int | socket.socket] = set()
_registered = False


def register(descriptor: Descriptor) -> Descriptor:
    """Keep `descriptor` for this process alone and return it. Nothing but `release` closes it."""
    global _registered
    if not _registered:
        os.register_at_fork(after_in_child=_release_all)
        _registered = True
    _held.add(descriptor)
    return descriptor


def is_registered(descriptor: int | socket.socket) -> bool:
    """Whether `descriptor` is held, hence open and ours."""
    return descriptor in _held


def release(descriptor: int | socket.socket) -> None:
    """Close `descriptor`; nothing happens if it is not held (released before, or this is a fork)."""
    if descriptor in _held:
        _held.discard(descriptor)
        if isinstance(descriptor, int):
            os.close(descriptor)
        else:
            descriptor.close()


def require_room(agents: int = 0) -> None:
    """Raise unless enough file descriptors are left to launch `agents` at once; 0: to start the root itself.

    Raises ConcurrencyLimitError for agents, LaunchError for the root. ZeroMQ would abort the user's program if it found
    no descriptor for a connecting worker.
    """
    import resource

    limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    if limit == resource.RLIM_INFINITY or limit >= PLENTY:
        return
    try:
        used = len(os.listdir("/dev/fd")) - 1
    except OSError:  # /dev/fd does not exist, or no descriptor is left to list it
        used = limit
    needed = EACH * agents + SPARE
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
    for descriptor in list(_held):
        release(descriptor)
