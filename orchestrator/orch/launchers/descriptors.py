"""Descriptors that belong to this process and to no fork of it.

The user's program may fork at any time. A child that kept the write end of a lifeline would keep the worker alive
after its root; so what is held here is closed in every child that Python forks.
"""

from __future__ import annotations

import os
import socket
from typing import TypeVar

__all__ = ["held", "hold", "release"]

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


def _release_all() -> None:
    for descriptor in list(_held):
        release(descriptor)
