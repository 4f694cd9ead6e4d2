"""Random ids of agents, queries and entries: short and safe to type."""

from __future__ import annotations

import os
import random
from collections.abc import Container

__all__ = ["new_entry_id", "new_id", "new_token"]

TOKEN_BYTES = 32

# This is a separate generator, so that ids do not repeat if a program seeds `random`, and ids do not use up the
# program's random numbers.
_random = random.Random()
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_random.seed)


def new_id() -> str:
    """Return 12 hex characters. The first is a letter, so that an id is never mistaken for a sequence number.

    Ids are random and not sortable, so that the first four characters usually identify an agent.
    """
    random_bytes = os.urandom(6)
    return "abcdef"[random_bytes[0] % 6] + random_bytes.hex()[1:]


def new_entry_id(taken: Container[str]) -> str:
    """Return 8 hex characters that are not in `taken`. The id is unique within one file, and is not a secret."""
    while (candidate := f"{_random.getrandbits(32):08x}") in taken:
        pass
    return candidate


def new_token() -> bytes:
    """Return the 256-bit secret that a worker sends in its Hello."""
    return os.urandom(TOKEN_BYTES)
