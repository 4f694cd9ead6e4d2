"""Processes that end again and again, and their zygotes: agents come back by themselves, or say that they do not."""

from __future__ import annotations

import asyncio
import os
import signal
from pathlib import Path

import pytest

from orch import AsyncOrchestrator, Config, ScriptedBackend, SubagentsConfig
from orch.processes.zygote import ZygoteLauncher
from orch_protocol.core.errors import AgentDiedError, AgentGoneError
from orch_worker.system import linux
from virtual_clock import until


@pytest.mark.parametrize("first", [True, False])
async def test_a_zygote_is_killed_as_an_agent_is_started_or_revived(home: Path, first: bool) -> None:
    """Nobody need do anything: another zygote makes its process, and the answer comes."""
    async with AsyncOrchestrator(home=home) as o:
        launcher = o.supervisor.workers.launcher
        assert isinstance(launcher, ZygoteLauncher)
        forker = launcher._forkers["lean"]
        other = await o.spawn("be there", backend=ScriptedBackend(["here"]))
        if first:
            spawning = asyncio.ensure_future(o.spawn("say it", backend=ScriptedBackend(["said"])))
            await asyncio.sleep(0)
            linux.kill(forker._pidfd)
            agent = await spawning
        else:
            agent = await o.spawn("say it", backend=ScriptedBackend(["said"]))
            os.kill(agent.pid or 0, signal.SIGKILL)
            await until(lambda: o.supervisor.tree.agents[agent.id].status == "died", 30)
            asking = agent.submit("go")
            linux.kill(forker._pidfd)
            assert (await asking).text == "said"
        assert (await agent.state()).status == "idle"
        assert (await other.query("still?")).text == "here"


async def test_an_agent_that_ends_its_process_in_every_turn_has_failed(home: Path) -> None:
    """After so many within a minute nobody's question revives it; a resume does."""
    suicide = {"tool": "bash", "input": {"command": "kill -9 $PPID"}}
    async with AsyncOrchestrator(config=Config(subagents=SubagentsConfig(restarts=2)), home=home) as o:
        agent = await o.spawn("work", backend=ScriptedBackend([suicide] * 3 + ["done"]), tools=["bash"])
        for _ in range(2):
            with pytest.raises(AgentDiedError, match="the next query revives it"):
                await agent.query("go")
        with pytest.raises(AgentDiedError, match="`orch resume 1` lets it answer again"):
            await agent.query("go")
        assert (await agent.state()).status == "failed"
        with pytest.raises(AgentGoneError, match="number 3 within 60 s"):
            await agent.query("go")
        await agent.resume()
        assert (await agent.query("go on")).text == "done"
