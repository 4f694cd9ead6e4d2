"""What filling the holes in memory costs at most; tests/integration/test_holes.py has what it brings."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from orch_worker.process import zygote
from orch_worker.process.zygote import fill_heap_holes


def test_where_nothing_lies_side_by_side_little_is_tried_and_nothing_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    """As with PYTHONMALLOC=debug, or another allocator that leaves room between any two things."""
    tried = dict.fromkeys((*zygote.MALLOC_SIZES, *zygote.PYMALLOC_SIZES), 0)

    def maker(size: int) -> Callable[[], object]:
        def make() -> object:
            tried[size] += 1
            return bytes(5 * size)

        return make

    monkeypatch.setattr(zygote, "_allocator_of_size", maker)
    assert fill_heap_holes() == []
    assert max(size * count for size, count in tried.items()) <= 1 << 20
