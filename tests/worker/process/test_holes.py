"""The maximum cost of filling holes in the heap. The benefit is tested in tests/integration/test_holes.py."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from orch_worker.process import zygote
from orch_worker.process.zygote import fill_heap_holes


def test_memory_without_adjacent_objects_keeps_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """If objects are never adjacent, as with PYTHONMALLOC=debug, at most 1 MiB of each size is tried."""
    tried = dict.fromkeys((*zygote.MALLOC_SIZES, *zygote.PYMALLOC_SIZES), 0)

    def maker(size: int) -> Callable[[], object]:
        def make() -> object:
            tried[size] += 1
            return bytes(5 * size)

        return make

    monkeypatch.setattr(zygote, "_allocator_of_size", maker)
    assert fill_heap_holes() == []
    assert max(size * count for size, count in tried.items()) <= 1 << 20
