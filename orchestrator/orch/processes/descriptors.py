"""Descriptors that belong to this process and to no fork of it.

The user's program may fork at any time. A child that kept the write end of a lifeline would keep the worker alive
after its root; so what is held here is closed in every child that Python forks.
"""

from __future__ import annotations

import os
import socket
from typing import Final, TypeVar

from orch_protocol.core.errors import ConcurrencyLimitError

__all__ = ["held", "hold", "release", "require_room"]

EACH: Final = 4
"""What an agent takes that is being launched: two ends of its birth pipe, its pidfd, its connection."""
SPARE: Final = 24
"""What is left to everything else: a shim, two zygotes, files that are read for a moment."""
PLENTY: Final = 1 << 16
"""With so many it would take more agents than any machine has processes for."""

Descriptor = TypeVar("Descriptor", int, socket.socket)

_held: set[int | socket.socket] = set()
_registered = False


def hold(descriptor: Descriptor) -> Descriptor:
    """Keep `descriptor` for this process alone and return it. Nothing but `release` closes it."""
    global _registered
    if not _registered:
        os.register_at_fork(after_in_child=_release_all)
        _registered = True
    _held.add(descriptor)
    return descriptor


def held(descriptor: int | socket.socket) -> bool:
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


def require_room(starting: int) -> None:
    """Raise ConcurrencyLimitError unless `starting` agents can be launched at once with the descriptors that are left.

    The socket library ends the process, the user's program, when it finds none for a worker that connects.
    """
    import resource

    limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    if limit == resource.RLIM_INFINITY or limit >= PLENTY:
        return
    try:
        taken = len(os.listdir("/dev/fd")) - 1
    except OSError:  # there is none to look with
        taken = limit
    if taken + EACH * starting + SPARE > limit:
        raise ConcurrencyLimitError(
            f"{taken} of the {limit} files that process {os.getpid()} may have open are open, too many to launch "
            f"{starting} agents: raise the limit (ulimit -n), or wait for agents to end"
        )


def _release_all() -> None:
    for descriptor in list(_held):
        release(descriptor)
