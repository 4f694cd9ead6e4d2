"""Orchestrators for tests, with agents in this process or in processes of their own."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from orch import AsyncOrchestrator
from orch.processes.exec import ExecLauncher
from orch.processes.in_process import InProcessLauncher
from orch.testing import FakeLauncher, fake_world

__all__ = ["AND_PROCESSES", "Open", "worlds"]

Open = Callable[..., Any]
AND_PROCESSES = pytest.mark.parametrize("world", ["fake", "zygote"], indirect=True)
"""Run a test with agents in this process, and with agents in processes of their own."""


@asynccontextmanager
async def worlds(launcher: str, home: Path) -> AsyncIterator[Open]:
    """Yield a function that opens orchestrators with this launcher. At the end, close them."""
    opened: list[AsyncOrchestrator] = []

    async def open_one(**options: Any) -> AsyncOrchestrator:
        how: dict[str, Any] = {}
        if launcher == "fake":
            how = fake_world(FakeLauncher())
        elif launcher == "in_process":
            how = {"launcher": InProcessLauncher}
        elif launcher == "exec":
            how = {"launcher": ExecLauncher}
        orchestrator = AsyncOrchestrator(**({"home": home, "env": {}} | how | options))
        await orchestrator.start()
        opened.append(orchestrator)
        return orchestrator

    yield open_one
    for orchestrator in opened:
        await orchestrator.close()
