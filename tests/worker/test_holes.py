"""What comes to be when a process's memory has no holes lies side by side."""

from __future__ import annotations

import gc
import itertools
import mmap
from collections.abc import Callable, Iterator

import pytest

from orch_worker import holes
from orch_worker.holes import filled

HEAD = b"".__sizeof__()


def pages(objects: list[object]) -> int:
    """Return on how many pages of memory objects begin."""
    return len({id(each) // mmap.PAGESIZE for each in objects})


@pytest.fixture
def settled() -> Iterator[None]:
    """Nothing is freed meanwhile but what a test frees: as in a zygote, which collects what there is before."""
    gc.collect()
    gc.disable()
    yield
    gc.enable()


@pytest.mark.usefixtures("settled")
@pytest.mark.parametrize("size", [48, 64, 208, 512, 528, 1000])
def test_what_is_made_when_the_holes_are_filled_lies_side_by_side(size: int) -> None:
    """Whatever its size is, in Python's own pools or in the C library's memory."""

    def make() -> bytes:
        return bytes(size - HEAD)

    there = [make() for _ in range(400_000 // size)]
    del there[:: 8192 // size + 1]  # a hole in each or every second page
    scattered = [make() for _ in range(12_000 // size)]
    scattered_over = pages(scattered)
    del scattered
    kept = filled()
    assert pages([make() for _ in range(12_000 // size)]) <= 7 < scattered_over
    assert kept


def test_where_nothing_lies_side_by_side_little_is_tried_and_nothing_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    """As with PYTHONMALLOC=debug, or an allocator that puts each thing somewhere else."""
    there = sorted((bytes(48) for _ in range(20_000)), key=id)
    tried = dict.fromkeys((*holes.LARGE, *holes.SMALL), 0)

    def maker(size: int) -> Callable[[], object]:
        ends = itertools.cycle((there[0], there[-1]))

        def make() -> object:
            tried[size] += 1
            return next(ends)

        return make

    monkeypatch.setattr(holes, "_maker", maker)
    assert filled() == []
    assert max(size * count for size, count in tried.items()) <= 1 << 20
