"""What a test that starts processes must leave as it was: no process of its own lives on, no descriptor is open.

A `conftest.py` that imports the last three of these lets each test beside it be followed by a census.
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

__all__ = ["Census", "allow", "descriptors", "marked", "processes", "pytest_runtest_setup", "pytest_runtest_teardown"]

NAME, VALUE = "CENSUS", f"{os.getpid()}-{time.time_ns()}"
MARK = f"{NAME}={VALUE}".encode()
"""What all processes carry in their environment that were started by this test session, however indirectly."""
PASSING = ("/proc/", "anon_inode:[pidfd]")
"""What is open only because it is being looked at, or is given back by the collector when it comes to that."""


def processes() -> set[int]:
    """Return the pids of all processes that were started by this test session."""
    found = set()
    for entry in os.listdir("/proc"):
        if entry.isdigit():
            try:
                if MARK in Path("/proc", entry, "environ").read_bytes():
                    found.add(int(entry))
            except OSError:
                pass
    return found


def descriptors() -> dict[int, str]:
    """Return what each descriptor of this process is of: a path, or the kind and number of a socket or pipe."""
    found = {}
    for name in os.listdir("/proc/self/fd"):
        try:
            found[int(name)] = os.readlink(f"/proc/self/fd/{name}")
        except OSError:
            pass  # the one that listed them
    return {number: what for number, what in found.items() if not what.startswith(PASSING)}


class Census:
    """What there is before a test."""

    def __init__(self) -> None:
        self.processes = processes()
        self.descriptors = descriptors()

    def left(self) -> list[str]:
        """Return what is there now and was not, in words."""
        found = [f"process {pid} lives on" for pid in sorted(processes() - self.processes)]
        if self._opened():
            gc.collect()  # what nobody holds any more is closed by the collector, some time
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
    """Set the mark in the environment of each process that a test starts."""
    monkeypatch.setenv(NAME, VALUE)
    monkeypatch.setenv("ORCH_ENVIRONMENT__PASS", NAME)
    allow(monkeypatch, NAME)


def allow(monkeypatch: pytest.MonkeyPatch, *names: str) -> None:
    """Pass the variables `names` to every process that this one starts for its agents, whatever its configuration."""
    monkeypatch.setattr(environment, "ALLOWED", (*environment.ALLOWED, *names))


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> Iterator[None]:
    """Count what there is before a test and its fixtures."""
    item.stash[BEFORE] = Census()
    return (yield)


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_teardown(item: pytest.Item) -> Iterator[None]:
    """Count it again when all of that is gone."""
    done = yield
    left = item.stash[BEFORE].left()
    assert not left, f"left behind: {'; '.join(left)}"
    return done
