"""Some of the faults that `make chaos` puts into every call to a file; and that one which matters would be noticed."""

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
    """Run a program of Python, and return how it ended and what it said."""
    return subprocess.run([sys.executable, *arguments], capture_output=True, text=True, timeout=SECONDS)


def test_a_life_survives_whatever_befalls_its_files() -> None:
    """Killed before, after or in the middle of a call, or refused by the disk: nothing is lost, nothing is twice."""
    done = injected(str(INJECTOR), "--every", str(EVERY))
    assert done.returncode == 0, done.stdout + done.stderr
    assert " points in " in done.stdout
    assert done.stdout.rstrip().endswith("0 went wrong")


def test_what_a_full_disk_leaves_of_a_write_is_missed_when_it_stays() -> None:
    """A product that takes nothing back is found out by the same look."""
    done = injected("-c", FORGETFUL, ":".join(sys.path), str(INJECTOR), "--only", "write ?: part")
    assert done.returncode == 1, done.stdout + done.stderr
    assert " was answered by " in done.stdout
    assert " and is lost" in done.stdout


@pytest.mark.parametrize("kind", ["5", "28+"])
def test_the_point_is_met_and_no_other(kind: str, tmp_path: Path) -> None:
    """Calls are counted one by one, each kind for itself; what is outside the home is no matter."""
    fault = Fault(tmp_path, "write", kind, 2)
    assert [fault.due("write") for _ in range(3)] == [False, True, kind.endswith("+")]
    assert not fault.due("fsync")
    assert fault.seen == {"write": 3, "fsync": 1}
    with (tmp_path / "file").open("w") as file:
        assert fault.touches(file.fileno())
    assert fault.touches(tmp_path / "file")
    assert not fault.touches("/dev/null")
    assert "write" in CALLS
