"""A sample of the file-operation faults of `make chaos`, and checks that the injector detects lost data."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from chaos.agent_life import CALLS, Fault

INJECTOR = Path(__file__).with_name("injector.py")
EVERY = 60
SECONDS = 50.0
FORGETFUL = """
import runpy, sys
sys.path[:0] = sys.argv.pop(1).split(":")
from chaos import agent_life
agent_life.watch()
from orch_worker.session.log.append_log import AppendLog
AppendLog._roll_back = lambda self: None
runpy.run_path(sys.argv.pop(1), run_name="__main__")
"""


def injected(*arguments: str) -> subprocess.CompletedProcess[str]:
    """Run Python with `arguments`, and return the ended process with its output."""
    return subprocess.run([sys.executable, *arguments], capture_output=True, text=True, timeout=SECONDS)


def test_agent_survives_any_fault_of_a_file_call() -> None:
    """No data is lost or duplicated if a file operation fails, or if the process is killed at the operation."""
    done = injected(str(INJECTOR), "--every", str(EVERY))
    assert done.returncode == 0, done.stdout + done.stderr
    assert " points in " in done.stdout
    assert done.stdout.rstrip().endswith("0 went wrong")


def test_injector_detects_a_missing_rollback() -> None:
    """The injector reports a lost answer if the log does not roll back partial writes."""
    done = injected("-c", FORGETFUL, ":".join(sys.path), str(INJECTOR), "--only", "write ?: part")
    assert done.returncode == 1, done.stdout + done.stderr
    assert " was answered by " in done.stdout
    assert " and is lost" in done.stdout


@pytest.mark.parametrize("kind", ["5", "28+"])
def test_injector_hits_exactly_the_chosen_call(kind: str, tmp_path: Path) -> None:
    """A fault hits the call with its number, with `+` also all later calls. Only paths below the home count."""
    fault = Fault(tmp_path, "write", kind, 2)
    assert [fault.due("write") for _ in range(3)] == [False, True, kind.endswith("+")]
    assert not fault.due("fsync")
    assert fault.seen == {"write": 3, "fsync": 1}
    with (tmp_path / "file").open("w") as file:
        assert fault.touches(file.fileno())
    assert fault.touches(tmp_path / "file")
    assert not fault.touches("/dev/null")
    assert "write" in CALLS
