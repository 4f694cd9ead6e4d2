"""Workers whose code computes in C and blocks all other code of the process."""

from __future__ import annotations

from pathlib import Path

import pytest

from integration.worker_processes import eventually, is_running
from orch import AsyncOrchestrator, Config, HooksConfig, Limits, ScriptedBackend
from orch_protocol.core.errors import AgentDiedError
from orch_protocol.core.messages import text_of

FOREVER = "sum(range(10**13))"


async def test_blocked_tool_host_is_ended_and_replaced(tmp_path: Path) -> None:
    """The call ends at its time limit, later calls work in a new process, and other agents are unaffected."""
    limits = Limits(tool_seconds=0.5)
    async with AsyncOrchestrator(home=tmp_path / "home", env={}) as o:
        blocked = f"import os\nwith open('pid', 'w') as file: _ = file.write(str(os.getpid()))\n{FOREVER}"
        calls = [{"tool": "run_python", "input": {"code": code}} for code in (blocked, "6 * 7")]
        script = [calls[0], "given up", calls[1], "back"]
        stuck = await o.spawn(
            "compute", tools=["run_python"], backend=ScriptedBackend(script), limits=limits, cwd=tmp_path
        )
        other = await o.spawn("wait", backend=ScriptedBackend([{"sleep": 1.0, "text": "done"}]), limits=limits)
        asked = other.submit("go")
        assert (await stuck.query("go")).text == "given up"
        await eventually(lambda: not is_running(int((tmp_path / "pid").read_text())))
        assert (await asked).text == "done"
        assert (await stuck.query("again")).text == "back"
        shown = str((await stuck.show()).messages)
        assert "did not react to a cancellation within 3 s. The variables of run_python are lost." in shown


@pytest.mark.usefixtures("impatient")
async def test_blocking_hook_is_ended_with_its_process(tmp_path: Path) -> None:
    """The error names the hook, and the next turn names the interrupted call."""
    file = tmp_path / "forever.py"
    file.write_text(
        f"from orch import hook\n@hook('tool_result', timeout=0.1)\ndef forever(event, ctx):\n    {FOREVER}\n"
    )
    config = Config(hooks=HooksConfig((str(file),)))
    limits = Limits(tool_seconds=0.5)
    async with AsyncOrchestrator(config=config, home=tmp_path / "home", env={}) as o:
        script = [{"tool": "run_python", "input": {"code": "1"}}, "back"]
        agent = await o.spawn("compute", tools=["run_python"], backend=ScriptedBackend(script), limits=limits)
        with pytest.raises(AgentDiedError, match=r"(?s)stuck and did not answer.*forever"):
            await agent.query("go")
        assert (await agent.query("again")).text == "back"
        asked = [text_of(message) for message in (await agent.show()).messages]
        assert any("The turn before this one was cut short" in text and "run_python" in text for text in asked)
