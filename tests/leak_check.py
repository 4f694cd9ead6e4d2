"""Checks that a test leaves no process and no open descriptor.

A `conftest.py` that imports the last three functions of this module runs the check after each test in its folder.
"""

from __future__ import annotations

import gc
import os
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from orch.processes import environment

__all__ = [
    "Census",
    "allow",
    "command_lines",
    "descriptors",
    "marked",
    "processes",
    "pytest_runtest_setup",
    "pytest_runtest_teardown",
]

NAME, VALUE = "CENSUS", f"{os.getpid()}-{time.time_ns()}"
MARK = f"{NAME}={VALUE}".encode()
"""A variable in the environment of all processes that this test session started, directly or indirectly."""
END_SECONDS = 5.0
"""How long a process that was killed, or whose parent did not wait for it, may take to end on a busy machine."""
PASSING = ("/proc/", "anon_inode:[pidfd]")
"""Descriptors that are open only during the check, or that the garbage collector closes later."""


def processes() -> set[int]:
    """Return the process ids of all processes that this test session started."""
    found = set()
    for entry in os.listdir("/proc"):
        if entry.isdigit():
            try:
                if MARK in Path("/proc", entry, "environ").read_bytes():
                    found.add(int(entry))
            except OSError:
                pass
    return found


def command_lines() -> list[str]:
    """Return the command lines of all processes that this test session started."""
    return [line for pid in processes() if (line := _command_line(pid))]


def _command_line(pid: int) -> str:
    """Return the command line of a process, or "" if it has ended."""
    try:
        return Path("/proc", str(pid), "cmdline").read_bytes().rstrip(b"\0").replace(b"\0", b" ").decode()
    except OSError:
        return ""


def descriptors() -> dict[int, str]:
    """Return the target of each descriptor of this process: a path, or the kind and number of a socket or pipe."""
    found = {}
    for name in os.listdir("/proc/self/fd"):
        try:
            found[int(name)] = os.readlink(f"/proc/self/fd/{name}")
        except OSError:
            pass  # this descriptor was used to list the others
    return {number: what for number, what in found.items() if not what.startswith(PASSING)}


class Census:
    """The processes and descriptors before a test."""

    def __init__(self) -> None:
        self.processes = processes()
        self.descriptors = descriptors()

    def left(self) -> list[str]:
        """Return descriptions of the processes and descriptors that did not exist before the test."""
        deadline = time.monotonic() + END_SECONDS
        while (running := processes() - self.processes) and time.monotonic() < deadline:
            time.sleep(0.01)
        found = [f"process {pid} lives on: {_command_line(pid)}" for pid in sorted(running)]
        if self._opened():
            gc.collect()  # the garbage collector closes objects that are no longer referenced
        return found + [f"descriptor {number} is open: {what}" for number, what in sorted(self._opened().items())]

    def _opened(self) -> dict[int, str]:
        before = Counter(self.descriptors.values())
        opened = {}
        for number, what in descriptors().items():
            if before[what]:
                before[what] -= 1
            else:
                opened[number] = what
        return opened


BEFORE = pytest.StashKey[Census]()


@pytest.fixture(autouse=True)
def marked(monkeypatch: pytest.MonkeyPatch) -> None:
    """Set the variable MARK in the environment of each process that a test starts."""
    monkeypatch.setenv(NAME, VALUE)
    monkeypatch.setenv("ORCH_ENVIRONMENT__PASS", NAME)
    allow(monkeypatch, NAME)


def allow(monkeypatch: pytest.MonkeyPatch, *names: str) -> None:
    """Pass the variables `names` to every process that this process starts for its agents, independent of the
    configuration.
    """
    monkeypatch.setattr(environment, "ALLOWED", (*environment.ALLOWED, *names))


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> Iterator[None]:
    """Record the processes and descriptors before a test and its fixtures."""
    item.stash[BEFORE] = Census()
    return (yield)


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_teardown(item: pytest.Item) -> Iterator[None]:
    """Compare the processes and descriptors after the test and its fixtures have ended."""
    done = yield
    left = item.stash[BEFORE].left()
    assert not left, f"left behind: {'; '.join(left)}"
    return done
