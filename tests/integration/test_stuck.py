"""A process whose tool computes in C and lets nothing else of it run."""

from __future__ import annotations

from pathlib import Path

import pytest

from orch import AsyncOrchestrator, Limits, ScriptedBackend
from orch_protocol.errors import AgentDiedError

FOREVER = "sum(range(10**13))"


async def test_a_process_that_lets_nothing_run_is_ended_and_says_where_it_was(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever asked is told with the place in the code; the agent answers again, and others were not touched."""
    for name in ("orch.turns.CHECK_SECONDS", "orch.pulses.CHECK_SECONDS", "orch.supervisor.CHECK_SECONDS"):
        monkeypatch.setattr(name, 0.2)
    monkeypatch.setattr("orch.pulses.GRACE_SECONDS", 0.5)
    limits = Limits(tool_seconds=0.5)
    async with AsyncOrchestrator(home=tmp_path, env={}) as o:
        script = [{"tool": "run_python", "input": {"code": FOREVER}}, "back"]
        stuck = await o.spawn("compute", tools=["run_python"], backend=ScriptedBackend(script), limits=limits)
        other = await o.spawn("wait", backend=ScriptedBackend([{"sleep": 2.5, "text": "done"}]), limits=limits)
        asked = other.submit("go")
        with pytest.raises(AgentDiedError, match=r"(?s)stuck and did not answer.*namespace"):
            await stuck.query("go")
        assert (await asked).text == "done"
        assert (await stuck.query("again")).text == "back"
