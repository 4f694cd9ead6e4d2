"""Commands and programs that are interrupted repeatedly, while they work and while they end."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from integration.command_shell import MAIN, SECONDS, Shell
from source_tree import PACKAGES, ROOT

PROGRAM = """
from orch import Orchestrator, ScriptedBackend

with Orchestrator() as o:
    agents = [o.spawn("wait", backend=ScriptedBackend([{"text": "late", "sleep": 60}])) for _ in range(4)]
    futures = [agent.submit("go") for agent in agents[1:]]
    print("ready", flush=True)
    agents[0].query("go")
"""


@pytest.mark.parametrize("pause", [0.0005, 0.003, 0.05])
def test_repeated_ctrl_c_ends_the_program_cleanly(home: Path, pause: float) -> None:
    """The program ends with SIGINT and prints no warnings about tasks, and its workers end."""
    roots = os.pathsep.join(str(ROOT / holder) for holder in PACKAGES.values())
    program = subprocess.Popen(
        [sys.executable, "-P", "-c", PROGRAM],
        env=os.environ | {"PYTHONPATH": roots, "ORCH_HOME": str(home)},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    assert program.stdout is not None
    assert program.stdout.readline() == b"ready\n"
    while program.poll() is None:
        program.send_signal(signal.SIGINT)
        time.sleep(pause)
    err = program.communicate(timeout=SECONDS)[1].decode()
    assert program.returncode == -signal.SIGINT
    assert "destroyed" not in err
    assert "never retrieved" not in err
    assert "KeyboardInterrupt" in err  # Python prints more if another signal arrives during the traceback


def test_second_ctrl_c_at_a_terminal_cancels_the_turn(shell: Shell) -> None:
    """The first Ctrl-C prints a hint, and the command exits with 130 after the second."""
    shell.run("spawn", "t", "--name", "a", "--script", shell.script({"text": "slow", "sleep": 60}, "and on"))
    ours, theirs = os.openpty()
    patient = f"from orch.cli.agents import query as waiting; waiting.AGAIN_SECONDS = {SECONDS}; {MAIN}"
    waiting = shell.start("query", "a", "hi", stderr=theirs, main=patient)
    os.close(theirs)
    shell.until("a", "busy")
    waiting.send_signal(signal.SIGINT)
    seen = b""
    while b"again within" not in seen:
        seen += os.read(ours, 1000)
    for _ in range(5):
        waiting.send_signal(signal.SIGINT)
    assert (waiting.communicate(timeout=SECONDS)[0], waiting.returncode) == (b"", 130)
    seen += os.read(ours, 4000)
    os.close(ours)
    assert b"agent a continues; press Ctrl-C again" in seen
    assert b"cancelled the turn of agent a" in seen
    assert not {b"Traceback", b"destroyed"} & set(seen.split())
    assert shell.data("collect", "a", code=1)["stop_reason"] == "cancelled"


def test_repeated_ctrl_c_ends_the_agent_of_orch_run(shell: Shell) -> None:
    """The agent ends if Ctrl-C arrives during the query and during the kill, and no warnings are printed."""
    script = shell.script({"text": "Wait.", "tool": "list_files"}, {"text": "slow", "sleep": 60})
    for pause in (0.0, 0.001, 0.01):
        running = shell.start("run", "t", "--stream", "--script", script)
        assert running.stdout is not None
        assert running.stdout.readline() == b"Wait.\n"
        while running.poll() is None:
            running.send_signal(signal.SIGINT)
            time.sleep(pause)
        err = running.communicate(timeout=SECONDS)[1]
        assert running.returncode == 130
        assert not {b"Traceback", b"destroyed"} & set(err.split())
        assert shell.data("list") == []
