"""Orchestrators for tests, and a check after each test that no process, socket, pipe or file is left open."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from integration.command_shell import Shell, opened
from integration.worker_processes import ear, entries, launcher, root
from integration.worlds import Open, worlds
from leak_check import marked, pytest_runtest_setup, pytest_runtest_teardown

__all__ = [
    "ear",
    "entries",
    "home",
    "launcher",
    "marked",
    "pytest_runtest_setup",
    "pytest_runtest_teardown",
    "root",
    "shared_shell",
    "shell",
    "world",
]


@pytest.fixture
def home(tmp_path: Path) -> Path:
    return tmp_path / "home"


@pytest.fixture
def shell(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Shell]:
    """A shell with its own home and folder.

    With the mark `shared_daemon`, it is the shell of the module, without living agents, files and settings.
    """
    if request.node.get_closest_marker("shared_daemon"):
        shared: Shell = request.getfixturevalue("shared_shell")
        shared.clear()
        yield shared
    else:
        with opened(tmp_path) as made:
            yield made


@pytest.fixture(scope="module")
def shared_shell(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Shell]:
    """The shell of a module. Its processes do not have the mark of the leak check, and end with the module."""
    with opened(tmp_path_factory.mktemp("shell")) as made:
        made.env.pop("CENSUS", None)
        yield made


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """A root that kills a process that does not respond for half a second after the time limit of a tool."""
    for name in (
        "orch.supervisor.timing.query_deadlines.CHECK_SECONDS",
        "orch.supervisor.timing.heartbeat.CHECK_SECONDS",
        "orch.supervisor.supervisor.CHECK_SECONDS",
    ):
        monkeypatch.setattr(name, 0.4)  # a check that is later by more than this does not count
    monkeypatch.setattr("orch.supervisor.timing.heartbeat.GRACE_SECONDS", 0.5)


@pytest.fixture(params=["fake", "in_process", "zygote"])
async def world(request: pytest.FixtureRequest, home: Path) -> AsyncIterator[Open]:
    """A function that opens orchestrators.

    The parameter of the test selects the launcher. They are closed after the test.
    """
    async with worlds(request.param, home) as open_one:
        yield open_one
