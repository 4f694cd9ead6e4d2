"""Processes that come and go under one root leave nothing in it: the short form of `make stress`."""

from __future__ import annotations

import asyncio
import gc
import os
import sys
from pathlib import Path

import psutil
import pytest

from orch import AsyncOrchestrator, ScriptedBackend
from orch.processes.router import WorkerConnection
from orch_protocol.wire.frames import FrameChannel
from orch_worker.transport.reliable_channel import ReliableChannel

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="descriptors are counted in /proc")

AT_ONCE = 6
WARM, LIVES = 6, 36
MORE_DESCRIPTORS = 5
MORE_MEMORY = 1.1
OF_A_PROCESS = (WorkerConnection, ReliableChannel, FrameChannel, asyncio.Task)
"""Whatever of these a process leaves behind it leaves ten thousand times."""


def held() -> int:
    """Return how many descriptors this process has."""
    return len(os.listdir("/proc/self/fd"))


def things() -> int:
    """Return how many objects there are in this process of which each process below it has its own."""
    gc.collect()
    return sum(isinstance(each, OF_A_PROCESS) for each in gc.get_objects())


async def test_lives_leave_neither_zombie_nor_descriptor_nor_memory(tmp_path: Path) -> None:
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
        before, objects, memory = held(), things(), psutil.Process().memory_info().rss
        await lives(LIVES)
        assert held() <= before + MORE_DESCRIPTORS
        assert things() <= objects
        assert psutil.Process().memory_info().rss <= MORE_MEMORY * memory
        below = psutil.Process().children(recursive=True)
        assert not [process for process in below if process.status() == psutil.STATUS_ZOMBIE]
        assert o.supervisor.counters.total() == 0
