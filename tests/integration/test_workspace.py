"""What an agent has at hand, and kill -9: it is told again, with what holds no more."""

from __future__ import annotations

import os
import signal
from pathlib import Path

from orch import AsyncOrchestrator, Config, ScriptedBackend, WorkspaceConfig

CODE = "sizes = [1, 2, 3]\ntotal = sum(sizes)"


async def test_it_survives_kill_9_but_for_values(home: Path, tmp_path: Path) -> None:
    """Files that changed meanwhile are stale, and values too: the process that had them is gone."""
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
        told = (await agent.prompt_parts()).render("volatile")
        assert "- file:pump.py (36 B; read_file, turn 1): class Pump: ... defines Pump, flow" in told
        assert "- value:total (int; 28 B; run_python, turn 1; from value:sizes): 6" in told
        await agent.workspace.pin("sizes")
        gone = o.supervisor.waiters.watch(f"gone:{agent.id}:{o.supervisor.tree.agents[agent.id].incarnation}")
        assert agent.pid is not None
        os.kill(agent.pid, signal.SIGKILL)
        await gone
        (tmp_path / "pump.py").write_text("class Pump: ...\n")
        cold = {each.name: each.stale for each in (await agent.workspace.show()).artifacts}
        await agent.query("And now?")
        told = (await agent.prompt_parts()).render("volatile")
    assert "read_file, turn 1) STALE: pump.py has changed since. Was: class Pump" in told
    assert "run_python, turn 1; pinned) STALE: not bound any more: the process that had it has ended. Was: 3" in told
    assert [name for name, why in cold.items() if not why] == []
