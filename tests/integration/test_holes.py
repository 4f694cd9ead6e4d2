"""Objects that are allocated after the holes in the heap were filled."""

from __future__ import annotations

import json
import subprocess
import sys

SCATTERED = """
import gc, json, mmap
from orch_worker.process.zygote import fill_heap_holes

def pages(objects):
    return len({id(each) // mmap.PAGESIZE for each in objects})

def make():
    return bytes(size - len(head))

head, counts = bytes(bytes().__sizeof__()), {}
gc.collect()
gc.disable()
for size in (64, 208, 512, 528, 1000):
    there = [make() for _ in range(400_000 // size)]
    del there[:: 8192 // size + 1]  # a hole in each or every second page
    made = [make() for _ in range(12_000 // size)]
    before = pages(made)
    del made
    kept = fill_heap_holes()
    counts[size] = before, pages([make() for _ in range(12_000 // size)])
    del kept
print(json.dumps(counts))
"""


def test_objects_allocated_after_filling_holes_are_adjacent() -> None:
    """New objects of 12,000 bytes use at most seven pages, in Python's pools and in the C heap."""
    ran = subprocess.run([sys.executable, "-c", SCATTERED], capture_output=True, text=True, timeout=60, check=True)
    counts = json.loads(ran.stdout)
    assert len(counts) == 5
    for before, after in counts.values():
        assert after <= 7 < before
