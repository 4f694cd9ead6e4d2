"""What is to be done later is done once, or called off, and then there is nothing left of it."""

from __future__ import annotations

import gc
import weakref
from pathlib import Path

from orch.supervisor.timing.timers import Timers
from orchestrator.root_double import opened
from virtual_clock import passed, virtual


class Deed:
    """Something to be done."""

    def __init__(self, done: list[str], name: str) -> None:
        self.done, self.name = done, name

    def do(self) -> None:
        self.done.append(self.name)


@virtual
async def test_each_is_done_once_in_its_time_unless_it_is_called_off() -> None:
    """One of the same key takes the place of the one before; nothing comes after the end."""
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
async def test_what_is_over_is_gone_without_a_garbage_collection() -> None:
    """Ten thousand of them would be a part of what a root takes."""
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
async def test_a_process_that_came_up_in_time_leaves_no_timer(tmp_path: Path) -> None:
    """Nor does one that is killed."""
    async with opened(tmp_path) as world:
        before = len(world.supervisor.timers)
        for _ in range(3):
            await (await world.scripted("yes")).kill()
        assert len(world.supervisor.timers) == before
