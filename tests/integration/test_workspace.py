"""The workspace after SIGKILL: its list is restored, and entries that are not current any more are stale."""

from __future__ import annotations

import os
import signal
from pathlib import Path

from orch import AsyncOrchestrator, Config, ScriptedBackend, WorkspaceConfig
from orch.tree.interface.topics import ExitTopic

CODE = "sizes = [1, 2, 3]\ntotal = sum(sizes)"


async def test_workspace_survives_kill_9_without_values(home: Path, tmp_path: Path) -> None:
    """After the kill, changed files and the values of the killed process are stale."""
    (tmp_path / "pump.py").write_text("class Pump:\n    def flow(self): ...\n")
    script = [
        {"tool": "read_file", "input": {"path": "pump.py"}},
        {"tool": "run_python", "input": {"code": CODE}},
        "Read.",
        "Again.",
    ]
    config = Config(workspace=WorkspaceConfig(enabled=True))
    async with AsyncOrchestrator(home=home, config=config) as o:
        agent = await o.spawn(
            "Look", tools=["read_file", "run_python"], cwd=tmp_path, backend=ScriptedBackend(script), context="none"
        )
        await agent.query("Read it.")
        text = (await agent.prompt_parts()).render("volatile")
        assert "- file:pump.py (36 B; read_file, turn 1): class Pump: ... defines Pump, flow" in text
        assert "- value:total (int; 28 B; run_python, turn 1; from value:sizes): 6" in text
        await agent.workspace.pin("sizes")
        gone = o.supervisor.waiters.watch(ExitTopic(agent.id, o.supervisor.tree.agents[agent.id].incarnation))
        assert agent.pid is not None
        os.kill(agent.pid, signal.SIGKILL)
        await gone
        (tmp_path / "pump.py").write_text("class Pump: ...\n")
        cold = {each.name: each.stale for each in (await agent.workspace.show()).artifacts}
        await agent.query("And now?")
        text = (await agent.prompt_parts()).render("volatile")
    assert "read_file, turn 1) STALE: pump.py has changed since. Was: class Pump" in text
    assert "run_python, turn 1; pinned) STALE: no longer bound: the process that had it has ended. Was: 3" in text
    assert [name for name, why in cold.items() if not why] == []
