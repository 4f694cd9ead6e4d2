"""The check after each test of this folder detects leaks."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
from pathlib import Path

import pytest

import leak_check
from leak_check import Census


def test_leaked_descriptors_are_named(tmp_path: Path) -> None:
    """The census lists files and sockets that were opened after its start, until they are closed."""
    with (tmp_path / "early").open("w"):
        before = Census()
        assert before.left() == []
        with (tmp_path / "late").open("w"), socket.socket():
            left = before.left()
        assert len(left) == 2
        assert any(str(tmp_path / "late") in each for each in left)
        assert any("socket:" in each for each in left)
        assert before.left() == []


def test_leaked_process_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """The census lists a process that does not end, with its command line."""
    before = Census()
    with subprocess.Popen(["sh", "-c", "sleep 600 & wait"], start_new_session=True) as process:
        with monkeypatch.context() as patched:
            patched.setattr(leak_check, "END_SECONDS", 0.1)
            assert f"process {process.pid} lives on: sh -c sleep 600 & wait" in before.left()
        process.kill()
        process.wait()
        for pid in leak_check.processes() - before.processes:
            os.kill(pid, signal.SIGKILL)
    assert before.left() == [], "the census waits for processes that are ending"


def test_leak_check_is_active_for_this_folder(request: pytest.FixtureRequest) -> None:
    """The hooks of this folder have stored a census before the test."""
    assert isinstance(request.node.stash[leak_check.BEFORE], Census)
