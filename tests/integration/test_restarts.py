"""Processes and zygotes that end repeatedly: agents are restarted, or fail with an explanation."""

from __future__ import annotations

import asyncio
import os
import signal
from pathlib import Path

import pytest

from integration.worker_processes import END, register_end
from orch import AsyncOrchestrator, Config, Image, ScriptedBackend, SubagentsConfig
from orch.processes.zygote import ZygoteLauncher
from orch_protocol.core.errors import AgentDiedError, AgentGoneError
from orch_protocol.core.messages import MAX_ENCODED, Text, ToolResult
from orch_worker.system import linux
from pictures import png
from virtual_clock import until


@pytest.mark.parametrize("first", [True, False])
async def test_killed_zygote_during_a_start_is_replaced(home: Path, first: bool) -> None:
    """The agent starts in a new zygote and answers, without an action of the caller."""
    async with AsyncOrchestrator(home=home) as o:
        launcher = o.supervisor.workers.launcher
        assert isinstance(launcher, ZygoteLauncher)
        forker = launcher._zygotes["lean"]
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


async def test_images_survive_the_death_of_the_process(home: Path, tmp_path: Path) -> None:
    """Images of the maximum size, in a prompt and in a tool result, are unchanged in the next process."""
    (tmp_path / "large.png").write_bytes(png(1, 1, MAX_ENCODED * 3 // 4 - len(png(1, 1))))
    image = Image.open(tmp_path / "large.png")

    def look() -> list[str | Image]:
        """Look."""
        return ["This:", image]

    script = ScriptedBackend([{"tool": "look", "input": {}}, "a dot", "sure"])
    async with AsyncOrchestrator(home=home) as o:
        agent = await o.spawn("Look", backend=script, tools=[look])
        assert (await agent.query(["What is this?", image])).text == "a dot"
        before = await agent.show()
        os.kill(agent.pid or 0, signal.SIGKILL)
        await until(lambda: o.supervisor.tree.agents[agent.id].status == "died", 30)
        assert (await agent.query("Sure?")).text == "sure"
        after = await agent.show()
        assert after.messages[:4] == before.messages
        assert before.messages[0].content[-1] == image
        assert before.messages[2].content == (ToolResult("call_1_1", (Text("This:"), image)),)


async def test_agent_ending_its_process_in_every_turn_fails(home: Path) -> None:
    """Above the limit of restarts the agent is `failed`, and only `resume` makes it usable again."""
    async with AsyncOrchestrator(config=Config(subagents=SubagentsConfig(restarts=2)), home=home) as o:
        register_end(o)
        agent = await o.spawn("work", backend=ScriptedBackend([END] * 3 + ["done"]), tools=["end_process"])
        for _ in range(2):
            with pytest.raises(AgentDiedError, match="the next query starts a new process"):
                await agent.query("go")
        with pytest.raises(AgentDiedError, match="`orch resume 1` makes it usable again"):
            await agent.query("go")
        assert (await agent.state()).status == "failed"
        with pytest.raises(AgentGoneError, match="3 processes of this agent ended within 60 s"):
            await agent.query("go")
        await agent.resume()
        assert (await agent.query("go on")).text == "done"
