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
NEAR: Final = 4
"""What lies so many sizes from what came before it is its neighbour; a few others of that size may come between."""
ROW_BYTES: Final = 12 << 10
"""Neighbours that are so much together fill no holes: it is most of a pool, and three pages."""
MOST_BYTES: Final = 1 << 20
"""More than goes into the holes of any one size: an allocator that takes it never lays things side by side."""
HEAD: Final = b"".__sizeof__()


def filled() -> list[object]:
    """Return objects that take the room of all holes of up to 16 KiB, for as long as they are kept."""
    return [kept for size in (*LARGE, *SMALL) for kept in _filled(size)]


def _filled(size: int) -> list[object]:
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


def _maker(size: int) -> Callable[[], object]:
    if size == 16:
        return object
    if size == 32:
        return lambda: float("0.5")
    return lambda: bytes(size - HEAD)
