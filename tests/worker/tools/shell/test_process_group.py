"""The search for all processes of a command, tested without processes."""

from __future__ import annotations

import os
from types import SimpleNamespace

import pytest

from orch_worker.tools.shell import process_group
from orch_worker.tools.shell.process_group import EXEC_SECONDS, UNSURE_SECONDS, ProcessDescendants


@pytest.mark.parametrize(
    ("state", "began", "seconds"),
    [("R", 5, EXEC_SECONDS), ("D", 5, EXEC_SECONDS), ("S", 5, UNSURE_SECONDS), ("R", 4, 0.0)],
)
def test_process_during_exec_is_waited_for(
    monkeypatch: pytest.MonkeyPatch, state: str, began: int, seconds: float
) -> None:
    """A process in `exec` has no readable environment, so it is waited for.

    A sleeping process is waited for only for a short time.
    """
    now = [10.0]

    def nothing(*_: object) -> None:
        raise FileNotFoundError

    monkeypatch.setattr(
        process_group, "_stat", lambda pid: process_group._Stat(state, 9, False, 5 if pid == 7 else began)
    )
    monkeypatch.setattr(process_group, "open", nothing, raising=False)
    monkeypatch.setattr(process_group, "time", SimpleNamespace(monotonic=lambda: now[0]))
    monkeypatch.setattr(os, "listdir", lambda _: ["self", "7", "9"])
    command = ProcessDescendants(7, "mark")
    command.reaped = True
    assert command.kill_all() == bool(seconds)
    for passed in (0.09, 1.9, 2.1):
        now[0] = 10.0 + passed
        assert command.kill_all() == (passed < seconds)
    assert command.killed == set()
