"""Names for things: agents, queries, entries. Random, short, safe to type."""

from __future__ import annotations

import os
import random
from collections.abc import Container

__all__ = ["new_entry_id", "new_id", "new_token"]

TOKEN_BYTES = 32

# Of our own: a program that seeds `random` gets its own numbers from it, all of them, and no ids that come again.
_luck = random.Random()
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_luck.seed)


def new_id() -> str:
    """Return 12 hex characters whose first is a letter, so that an id is never mistaken for a sequence number.

    Random rather than sortable: the first four characters already tell two agents apart; order is the sequence
    number's work.
    """
    random_bytes = os.urandom(6)
    return "abcdef"[random_bytes[0] % 6] + random_bytes.hex()[1:]


def new_entry_id(taken: Container[str]) -> str:
    """Return 8 hex characters (pi's entry id) not in `taken`: unique in one file, and no secret."""
    while (candidate := f"{_luck.getrandbits(32):08x}") in taken:
        pass
    return candidate


def new_token() -> bytes:
    """Return the 256-bit secret that a worker shows in its Hello."""
    return os.urandom(TOKEN_BYTES)
