"""The holes that a process has in its memory when it has imported much, filled before it forks.

What was freed left room between what stays. A fork that puts its own first objects there writes to a page here and a
page there, and each becomes a copy of its own. Where nothing is free, they come to lie side by side.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

__all__ = ["filled"]

LARGE: Final = (*range(16_384, 4096, -512), *range(4096, 1024, -64), *range(1024, 512, -16))
"""Sizes, in bytes, of what Python asks the C library for: first what only the larger holes have room for."""
SMALL: Final = range(16, 513, 16)
"""Sizes of what Python keeps in pools of its own, one size in each."""
ROW_BYTES: Final = 12 << 10
"""Where the C library lays so much side by side, it has no smaller hole left: it takes those first."""
POOL_BYTES: Final = 16 << 10
"""Pools that have been begun are filled before another is, in any order."""
POOL_HEAD: Final = 48
NEW_POOLS: Final = 2
"""So many that hold nothing else: one may be old, and nearly empty."""
NEAR: Final = 4
"""What lies so many sizes from what came before it is its neighbour; a few others of that size may come between."""
MOST_BYTES: Final = 1 << 20
"""More than goes into the holes of any one size: an allocator that takes it never lays things side by side."""
HEAD: Final = b"".__sizeof__()


def filled() -> list[object]:
    """Return objects that take the room of all holes of up to 16 KiB, for as long as they are kept."""
    kept = [each for size in LARGE for each in _in_rows(size)]
    return kept + [each for size in SMALL for each in _in_pools(size)]


def _in_rows(size: int) -> list[object]:
    make, row, last = _maker(size), 0, 0
    kept: list[object] = []
    while len(kept) < MOST_BYTES // size:
        made = make()
        row = row + 1 if abs(id(made) - last) < NEAR * size else 1
        kept.append(made)
        last = id(made)
        if row * size > ROW_BYTES:
            return kept[:-row]
    return []  # as one that looks for mistakes does: nothing is gained, and no fork is to carry that


def _in_pools(size: int) -> list[object]:
    make, whole = _maker(size), (POOL_BYTES - POOL_HEAD) // size - NEAR
    kept: list[object] = []
    held: dict[int, int] = {}
    new: set[int] = set()
    while len(kept) < MOST_BYTES // size:
        made = make()
        kept.append(made)
        pool = id(made) // POOL_BYTES
        held[pool] = count = held.get(pool, 0) + 1
        if count >= whole:
            new.add(pool)
            if len(new) == NEW_POOLS:
                return [each for each in kept if id(each) // POOL_BYTES not in new]
    return []


def _maker(size: int) -> Callable[[], object]:
    if size == 16:
        return object
    if size == 32:
        return lambda: float("0.5")
    return lambda: bytes(size - HEAD)
