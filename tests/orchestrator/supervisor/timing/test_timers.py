"""Timers: each fires once or is cancelled, and then uses no memory."""

from __future__ import annotations

import gc
import weakref
from pathlib import Path

from orch.supervisor.timing.timers import Timers
from orchestrator.root_double import opened
from virtual_clock import passed, virtual


class Deed:
    """A callback that records its name."""

    def __init__(self, done: list[str], name: str) -> None:
        self.done, self.name = done, name

    def do(self) -> None:
        self.done.append(self.name)


@virtual
async def test_timer_fires_once_unless_cancelled_or_replaced() -> None:
    """A timer with the same key replaces the earlier one. Closing cancels all timers."""
    timers, done = Timers(), list[str]()
    for seconds, name, key in ((3, "c", None), (1, "a", None), (2, "never", "k"), (2, "b", "k"), (9, "late", None)):
        timers.later(seconds, Deed(done, name).do, key)
    timers.later(1, Deed(done, "off").do, "off")
    timers.cancel("off")
    timers.cancel("nothing")
    await passed(4)
    assert (done, len(timers)) == (["a", "b", "c"], 1)
    timers.close()
    await passed(9)
    assert (done[-1], len(timers)) == ("c", 0)


@virtual
async def test_finished_timers_are_freed_without_garbage_collection() -> None:
    """A timer that has fired and one that was cancelled keep no reference to their callback."""
    timers, done = Timers(), list[str]()
    gc.collect()
    gc.disable()
    try:
        fired, off = Deed(done, "fired"), Deed(done, "off")
        known = [weakref.ref(fired), weakref.ref(off)]
        timers.later(1, fired.do)
        timers.later(1, off.do, "off")
        del fired, off
        timers.cancel("off")
        await passed(2)
        assert (done, [deed() for deed in known]) == (["fired"], [None, None])
    finally:
        gc.enable()


@virtual
async def test_ready_or_killed_worker_leaves_no_timer(tmp_path: Path) -> None:
    """The number of timers is the same as before the spawns."""
    async with opened(tmp_path) as world:
        before = len(world.supervisor.timers)
        for _ in range(3):
            await (await world.scripted("yes")).kill()
        assert len(world.supervisor.timers) == before
