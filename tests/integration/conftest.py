"""Orchestrators for tests, and a check after each test that no process, socket, pipe or file is left open."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from integration.command_shell import Shell, opened
from integration.worker_processes import ear, entries, launcher, root
from leak_check import marked, pytest_runtest_setup, pytest_runtest_teardown
from orch import AsyncOrchestrator
from orch.processes.exec import ExecLauncher
from orch.processes.in_process import InProcessLauncher
from orch.testing import FakeLauncher, fake_world

__all__ = [
    "ear",
    "entries",
    "home",
    "launcher",
    "marked",
    "pytest_runtest_setup",
    "pytest_runtest_teardown",
    "root",
    "shell",
    "world",
]

Open = Callable[..., Any]


@pytest.fixture
def home(tmp_path: Path) -> Path:
    return tmp_path / "home"


@pytest.fixture
def shell(tmp_path: Path) -> Iterator[Shell]:
    """A shell with its own home and folder."""
    with opened(tmp_path) as made:
        yield made


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """A root that kills a process that does not respond for half a second after the time limit of a tool."""
    for name in (
        "orch.supervisor.timing.query_deadlines.CHECK_SECONDS",
        "orch.supervisor.timing.heartbeat.CHECK_SECONDS",
        "orch.supervisor.supervisor.CHECK_SECONDS",
    ):
        monkeypatch.setattr(name, 0.2)
    monkeypatch.setattr("orch.supervisor.timing.heartbeat.GRACE_SECONDS", 0.5)


@pytest.fixture(params=["fake", "in_process", "zygote"])
async def world(request: pytest.FixtureRequest, home: Path) -> AsyncIterator[Open]:
    """A function that opens orchestrators.

    The parameter of the test selects the launcher. They are closed after the test.
    """
    opened: list[AsyncOrchestrator] = []

    async def open_one(**options: Any) -> AsyncOrchestrator:
        how: dict[str, Any] = {}
        if request.param == "fake":
            how = fake_world(FakeLauncher())
        elif request.param == "in_process":
            how = {"launcher": InProcessLauncher}
        elif request.param == "exec":
            how = {"launcher": ExecLauncher}
        orchestrator = AsyncOrchestrator(**({"home": home, "env": {}} | how | options))
        await orchestrator.start()
        opened.append(orchestrator)
        return orchestrator

    yield open_one
    for orchestrator in opened:
        await orchestrator.close()
