"""What follows each of these tests would notice."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
from pathlib import Path

import pytest

import leak_check
from leak_check import Census


def test_what_is_left_open_is_named(tmp_path: Path) -> None:
    """A file, a pipe, a socket; what was open before is not."""
    with (tmp_path / "early").open("w"):
        before = Census()
        assert before.left() == []
        with (tmp_path / "late").open("w"), socket.socket():
            left = before.left()
        assert len(left) == 2
        assert any(str(tmp_path / "late") in each for each in left)
        assert any("socket:" in each for each in left)
        assert before.left() == []


def test_a_process_that_lives_on_is_named() -> None:
    """As long as it does, whoever started it."""
    before = Census()
    with subprocess.Popen(["sh", "-c", "sleep 600 & wait"], start_new_session=True) as process:
        assert any(f"process {process.pid} lives on" in each for each in before.left())
        process.kill()
        process.wait()
        for pid in leak_check.processes() - before.processes:
            os.kill(pid, signal.SIGKILL)
    for _ in range(1000):
        if not before.left():
            return
    pytest.fail("what was killed is still there")


def test_it_follows_this_test(request: pytest.FixtureRequest) -> None:
    """The hooks are those of this folder."""
    assert isinstance(request.node.stash[leak_check.BEFORE], Census)
