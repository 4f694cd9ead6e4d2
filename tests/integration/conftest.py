"""Orchestrators to test on, and the census that follows each test: no process, socket or lock is left."""

from __future__ import annotations

import os
import time
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from integration.shell import Shell, opened
from orch import AsyncOrchestrator
from orch.launchers.exec import ExecLauncher
from orch.launchers.in_process import InProcessLauncher
from orch.testing import FakeLauncher, fake_world

Open = Callable[..., Any]


MARK = f"CENSUS={os.getpid()}-{time.time_ns()}"


def ours() -> set[int]:
    """Return the pids of all processes that were started, however indirectly, by this test session."""
    found = set()
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                if MARK.encode() in (entry / "environ").read_bytes():
                    found.add(int(entry.name))
            except OSError:
                pass
    return found


@pytest.fixture(autouse=True)
def _leaves_nothing(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setenv(*MARK.split("="))
    before = ours()
    yield
    left = ours() - before
    assert not left, f"processes left behind: {left}"


@pytest.fixture
def home(tmp_path: Path) -> Path:
    return tmp_path / "home"


@pytest.fixture
def shell(tmp_path: Path) -> Iterator[Shell]:
    """A shell with a home and a folder of its own."""
    with opened(tmp_path) as made:
        yield made


@pytest.fixture(params=["fake", "in_process", "zygote"])
async def world(request: pytest.FixtureRequest, home: Path) -> AsyncIterator[Open]:
    """Opens orchestrators that run their agents in the way the test's parameter says, and closes them afterwards."""
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
