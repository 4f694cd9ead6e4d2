"""The limit of a process's address space (`ulimit -v`), and its mention in errors that it causes."""

from __future__ import annotations

import sys
from typing import Final

__all__ = ["REMEDY", "address_space_limit", "free_address_space", "with_memory_limit"]

SYMPTOMS: Final = (
    "MemoryError",
    "Cannot allocate memory",
    "can't start new thread",
    "failed to map segment",
    "src/thread.cpp",  # ZeroMQ aborts the process when it cannot start its thread.
    "std::bad_alloc",
)
"""Texts in errors that a low limit of the address space causes."""
LEAST_BYTES: Final = 64 << 20
"""Below this limit, any error can be a symptom: a process of orch cannot even import its modules."""
REMEDY: Final = "raise the limit, for example with `ulimit -v unlimited`"


def address_space_limit() -> int | None:
    """Return the limit of this process's address space in bytes, or None if there is no limit."""
    try:
        with open("/proc/self/limits", "rb") as file:  # Without memory, a module such as `resource` cannot be imported.
            line = next(line for line in file if line.startswith(b"Max address space"))
        soft = line.split()[3]
        return None if soft == b"unlimited" else int(soft)
    except (OSError, StopIteration):  # This system has no /proc.
        pass
    if sys.platform == "win32":
        return None
    import resource

    limit = resource.getrlimit(resource.RLIMIT_AS)[0]
    return None if limit == resource.RLIM_INFINITY else limit


def free_address_space() -> int | None:
    """Return how many bytes of address space this process can still use. None means that there is no known limit."""
    limit = address_space_limit()
    if limit is None:
        return None
    try:
        with open("/proc/self/statm", "rb") as file:
            pages = int(file.read().split()[0])
    except OSError:  # This system has no /proc.
        return limit
    import resource

    return limit - pages * resource.getpagesize()


def with_memory_limit(text: str) -> str:
    """Return the error `text`, with the limit and the remedy if a low limit of the address space can be its cause."""
    if REMEDY in text or (limit := address_space_limit()) is None:
        return text
    if limit >= LEAST_BYTES and not any(symptom in text for symptom in SYMPTOMS):
        return text
    return f"{text} (the address space of this process is limited to {limit >> 20} MiB: {REMEDY})"
