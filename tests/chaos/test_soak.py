"""Many agents that start and end under one root leave no resources in the root: the short form of `make stress`."""

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
"""The types of which the root has objects for each worker. After ten thousand workers, a leak is large."""


def held() -> int:
    """Return the number of open descriptors of this process."""
    return len(os.listdir("/proc/self/fd"))


def things() -> int:
    """Return the number of objects in this process that belong to one worker each."""
    gc.collect()
    return sum(isinstance(each, OF_A_PROCESS) for each in gc.get_objects())


async def test_repeated_agents_leave_no_zombie_descriptor_or_memory(tmp_path: Path) -> None:
    """After many cycles of spawn, query, kill and resume, the root has about as many descriptors and as much memory as
    before.
    """
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
