"""Plan mode and kill -9: who had no approval comes back in plan mode, who had one comes back without it."""

from __future__ import annotations

import contextlib
import os
import signal
from pathlib import Path
from typing import Any

import pytest

from orch import AsyncOrchestrator, AsyncSubagent, OrchError, Question, ScriptedBackend

WRITE = {"tool": "write_file", "input": {"path": "out.txt", "content": "x"}}
PLAN = {"tool": "exit_plan_mode", "input": {"plan": "Write out.txt."}}


async def planner(root: AsyncOrchestrator, folder: Path, *said: Any) -> AsyncSubagent:
    """Spawn an agent in plan mode that says `said`."""
    return await root.spawn("x", tools=["write_file"], cwd=folder, plan=True, backend=ScriptedBackend(said))


async def killed(agent: AsyncSubagent) -> None:
    """Let the agent's process be gone."""
    pid = agent.pid
    assert pid is not None
    os.kill(pid, signal.SIGKILL)
    with contextlib.suppress(OrchError):
        await agent.query("Hello?")


@pytest.mark.parametrize("approved", [True, False])
async def test_it_survives_kill_9_as_it_was(home: Path, tmp_path: Path, approved: bool) -> None:
    """Killed after the answer, whatever that was, the agent's next process goes by it."""
    async with AsyncOrchestrator(home=home, approve=lambda _: approved) as root:
        agent = await planner(root, tmp_path, PLAN, "one", "two", WRITE, "three", WRITE, "four")
        await agent.query("Begin")
        await killed(agent)
        await agent.query("Write")
        await agent.query("Write")
        assert (await agent.state()).planning is not approved
    assert (tmp_path / "out.txt").exists() is approved


async def test_a_yes_counts_though_the_agent_dies_before_it_hears_it(home: Path, tmp_path: Path) -> None:
    """An approval is on record before the agent knows: killed in between, its next process is not in plan mode."""

    def approve(_: Question) -> bool:
        assert agent.pid is not None
        os.kill(agent.pid, signal.SIGSTOP)  # it is there, so that the answer counts, and hears nothing any more
        return True

    async with AsyncOrchestrator(home=home, approve=approve) as root:
        agent = await planner(root, tmp_path, PLAN, WRITE, "done", "more")
        future = agent.submit("Begin")
        while (await agent.state()).planning:
            await root.wait(agent, timeout=0.01)
        pid = agent.pid
        assert pid is not None
        os.kill(pid, signal.SIGKILL)
        with pytest.raises(OrchError):
            await future
        assert (await agent.query("Go on")).tool_calls == 1
    assert (tmp_path / "out.txt").exists()
