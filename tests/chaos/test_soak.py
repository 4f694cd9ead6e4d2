"""Processes that come and go under one root leave nothing in it: the short form of `make stress`."""

from __future__ import annotations

import asyncio
import os
import sys
from pathlib import Path

import psutil
import pytest

from orch import AsyncOrchestrator, ScriptedBackend

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="descriptors are counted in /proc")

AT_ONCE = 6
WARM, LIVES = 6, 36
MORE_DESCRIPTORS = 5


def held() -> int:
    """Return how many descriptors this process has."""
    return len(os.listdir("/proc/self/fd"))


async def test_lives_leave_neither_zombie_nor_descriptor(tmp_path: Path) -> None:
    """Spawned, asked, killed, resumed, asked: what is there afterwards is what was there before."""
    async with AsyncOrchestrator(home=tmp_path, env={}) as o:

        async def life() -> None:
            agent = await o.spawn("live", backend=ScriptedBackend([{"loop": ["yes"]}]))
            assert (await agent.query("?")).text == "yes"
            await agent.kill()
            await agent.resume()
            assert (await agent.query("?")).text == "yes"
            await agent.kill()

        async def lives(count: int) -> None:
            for _ in range(count // AT_ONCE):
                await asyncio.gather(*(life() for _ in range(AT_ONCE)))

        await lives(WARM)
        before = held()
        await lives(LIVES)
        assert held() <= before + MORE_DESCRIPTORS
        below = psutil.Process().children(recursive=True)
        assert not [process for process in below if process.status() == psutil.STATUS_ZOMBIE]
        assert o.supervisor.counters.total() == 0
