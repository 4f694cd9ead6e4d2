"""Maps with real processes: what `kill -9` and Ctrl-C leave, and what the next run does."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

from integration import counting_model
from integration.command_shell import SECONDS, Shell

ITEMS, WORKERS = 30, 6
PROGRAM = f"""
from dataclasses import dataclass
from orch import Orchestrator

@dataclass
class Review:
    verdict: str

with Orchestrator("counting_model:Counting", run="reviews") as o:
    results = o.map(range({ITEMS}), "Review number {{item}}", workers={WORKERS}, returns=Review, tools=[])
    for each in results:
        print(each.value.verdict)
"""


def sent(folder: Path) -> Counter[str]:
    """Return how often the model got each item."""
    return _counted(folder, "sent ")


def answered(folder: Path) -> Counter[str]:
    """Return how often the model answered each item."""
    return _counted(folder, "answered ")


def _counted(folder: Path, start: str) -> Counter[str]:
    log = folder / counting_model.LOG
    lines = log.read_text().splitlines() if log.exists() else []
    return Counter(line.removeprefix(start) for line in lines if line.startswith(start))


def prepare(shell: Shell) -> None:
    """Install the model, which holds requests after the first six."""
    assert counting_model.__file__ is not None
    shutil.copy(counting_model.__file__, shell.folder)
    (shell.folder / counting_model.HOLD).touch()
    shell.env["PYTHONPATH"] += f"{os.pathsep}{shell.folder}"


def until_held(folder: Path, requests: int = 2 * WORKERS) -> None:
    """Return when the model got `requests` requests. All but the first six are in flight, or were interrupted."""
    deadline = time.monotonic() + SECONDS
    while (sent(folder).total(), answered(folder).total()) != (requests, WORKERS):
        assert time.monotonic() < deadline, (sent(folder), answered(folder))
        time.sleep(0.05)


def start(shell: Shell) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [sys.executable, "-P", "-c", PROGRAM], cwd=shell.folder, env=shell.env, stdout=subprocess.PIPE
    )


def test_a_program_killed_in_the_middle_asks_only_what_was_not_answered(shell: Shell) -> None:
    """All items are answered, none is answered twice, and only the requests in flight are sent again."""
    prepare(shell)
    program = start(shell)
    until_held(shell.folder)
    program.kill()
    program.communicate()
    (shell.folder / counting_model.HOLD).unlink()
    output, _ = start(shell).communicate(timeout=SECONDS)
    assert output.decode().splitlines() == [f"reviewed {n}" for n in range(ITEMS)]
    assert answered(shell.folder) == {str(n): 1 for n in range(ITEMS)}
    assert sent(shell.folder).total() == ITEMS + WORKERS


def test_a_command_continues_after_the_daemon_was_killed_and_after_ctrl_c(shell: Shell) -> None:
    """Each interruption costs only the requests in flight. The messages say how to continue."""
    prepare(shell)
    folder = shell.folder
    (folder / "items").write_text("".join(f"{n}\n" for n in range(ITEMS)))
    (folder / "review.json").write_text('{"type": "object", "properties": {"verdict": {"type": "string"}}}')
    command = ["map", "Review number {item}", "--lines", "items", "--workers", str(WORKERS), "--returns", "review.json"]
    command += ["--tools", "", "--model", "counting_model:Counting"]

    first = shell.start(*command)
    until_held(folder)
    os.kill(shell.data("daemon", "status")["pid"], signal.SIGKILL)
    _, errors = first.communicate(timeout=SECONDS)
    assert (first.returncode, b"The same command continues the map" in errors) == (1, True), errors

    second = shell.start(*command)
    until_held(folder, 3 * WORKERS)
    second.send_signal(signal.SIGINT)
    assert second.stderr is not None
    while b"press Ctrl-C again" not in (line := second.stderr.readline()):
        assert line
    second.send_signal(signal.SIGINT)
    output, errors = second.communicate(timeout=SECONDS)
    assert (second.returncode, output.count(b"error: cancelled"), output.count(b"not started")) == (130, 6, 0)
    assert b"18 not started" in errors
    assert b"6 of 30 items answered (6 kept), 6 failed" in errors, errors

    deadline = time.monotonic() + SECONDS  # A cancelled call that continued would count its answer.
    while any(run["busy"] for run in shell.data("runs")):
        assert time.monotonic() < deadline
    (folder / counting_model.HOLD).unlink()
    results = shell.data(*command)
    assert [each["value"] for each in results] == [{"verdict": f"reviewed {n}"} for n in range(ITEMS)]
    assert sum(each["kept"] for each in results) == WORKERS
    assert answered(folder) == {str(n): 1 for n in range(ITEMS)}
    assert sent(folder).total() == ITEMS + 2 * WORKERS
