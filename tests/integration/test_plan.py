"""Plan mode after SIGKILL: the next process is in plan mode unless the plan was approved."""

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
    """Spawn an agent in plan mode with the script `said`."""
    return await root.spawn("x", tools=["write_file"], cwd=folder, plan=True, backend=ScriptedBackend(said))


async def killed(agent: AsyncSubagent) -> None:
    """Kill the agent's process, and send a query, which may fail."""
    pid = agent.pid
    assert pid is not None
    os.kill(pid, signal.SIGKILL)
    with contextlib.suppress(OrchError):
        await agent.query("Hello?")


@pytest.mark.parametrize("approved", [True, False])
async def test_plan_mode_survives_kill_9(home: Path, tmp_path: Path, approved: bool) -> None:
    """The next process follows the decision: without approval it is in plan mode and writes no file."""
    async with AsyncOrchestrator(home=home, approve=lambda _: approved) as root:
        agent = await planner(root, tmp_path, PLAN, "one", "two", WRITE, "three", WRITE, "four")
        await agent.query("Begin")
        await killed(agent)
        await agent.query("Write")
        await agent.query("Write")
        assert (await agent.state()).planning is not approved
    assert (tmp_path / "out.txt").exists() is approved


async def test_approval_recorded_before_a_kill_counts(home: Path, tmp_path: Path) -> None:
    """The next process is not in plan mode, although the killed one did not receive the approval."""

    def approve(_: Question) -> bool:
        assert agent.pid is not None
        os.kill(agent.pid, signal.SIGSTOP)  # a stopped process exists, so the answer counts, but does not receive it
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
