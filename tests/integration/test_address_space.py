"""A low limit of the address space: errors name the limit and the remedy, and no process is aborted."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from integration.command_shell import MAIN, SECONDS, Shell

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="other systems do not apply RLIMIT_AS")
REMEDY = "raise the limit, for example with `ulimit -v unlimited`"
PROGRAM = """
import resource, sys
from orch import Orchestrator, ScriptedBackend
resource.setrlimit(resource.RLIMIT_AS, (int(sys.argv[2]) << 20, resource.RLIM_INFINITY))
with Orchestrator(home=sys.argv[1], env={}) as o:
    print(o.spawn("x", backend=ScriptedBackend(["yes"])).query("?").text)
"""


@pytest.mark.parametrize("mib", [24, 44, 60, 90])
@pytest.mark.parametrize("argv", [["run", "x"], ["spawn", "x"], ["daemon", "start"]], ids=" ".join)
def test_commands_name_the_limit(argv: list[str], mib: int, shell: Shell) -> None:
    """The command itself, the start of the daemon, or its first threads can fail."""
    limit = f"import resource; resource.setrlimit(resource.RLIMIT_AS, ({mib << 20}, {mib << 20}))"
    command = shell.start(*argv, main=f"{limit}; {MAIN}")
    _, stderr = command.communicate(timeout=SECONDS)
    text = stderr.decode()
    assert command.returncode == 1, text
    assert f"limit is {mib} MiB" in text or f"limited to {mib} MiB" in text
    assert REMEDY in text
    assert text.startswith("orch: ")


def test_program_gets_an_error_and_is_not_aborted(tmp_path: Path) -> None:
    """ZeroMQ would abort the process when it cannot start a thread."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    argv = [sys.executable, "-c", PROGRAM, str(tmp_path)]
    done = subprocess.run([*argv, "70"], env=environment, capture_output=True, timeout=40, check=False)
    assert done.returncode == 1
    last = done.stderr.decode().splitlines()[-1]
    assert "LaunchError: cannot start an orchestrator: " in last
    assert last.endswith(f"(its limit is 70 MiB): {REMEDY}")
    done = subprocess.run([*argv, "400"], env=environment, capture_output=True, timeout=40, check=False)
    assert (done.returncode, done.stdout) == (0, b"yes\n"), done.stderr.decode()
