"""Killed roots whose agents run commands that try to outlive the root."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from orch import AsyncOrchestrator
from orch.supervisor.recovery.orphan_cleanup import kill_orphans, processes_with_token, run_token, stored_token

SECONDS = 20.0
STRAYS = 3
"""Processes of each command: one in a separate session, its child that lost its parent, and the shell."""
PROGRAM = """
import asyncio, json, os, sys
from orch import AsyncOrchestrator, ScriptedBackend, Config, SubagentsConfig

STUBBORN = "setsid sh -c 'trap \\"\\" TERM HUP; (sleep 601 &) ; exec sleep 602' & echo $$ >> started; sleep 603"

async def main(home, count):
    config = Config(subagents=SubagentsConfig(max_concurrent=64))
    async with AsyncOrchestrator(home=home, run="r", env={}, config=config) as o:
        script = [{"tool": "bash", "input": {"command": STUBBORN}}, "done"]
        asked = []
        for number in range(count):
            agent = await o.spawn("run", tools=["bash"], backend=ScriptedBackend(script), cwd=home)
            asked.append(agent.submit("now"))
        started = os.path.join(home, "started")
        while not os.path.exists(started) or len(open(started).read().split()) < count:
            await asyncio.sleep(0.01)
        shim = o.supervisor.workers.launcher._shim._process.pid
        print(json.dumps({"shim": shim}), flush=True)
        await asyncio.Event().wait()

asyncio.run(main(sys.argv[1], int(sys.argv[2])))
"""

Start = Callable[[int], tuple[subprocess.Popen[bytes], int]]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    """A function that starts a program with `count` agents that run such commands.

    The function returns the program and the pid of its shim.
    """
    programs: list[subprocess.Popen[bytes]] = []

    def started(count: int) -> tuple[subprocess.Popen[bytes], int]:
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
        argv = [sys.executable, "-c", PROGRAM, str(tmp_path), str(count)]
        program = subprocess.Popen(argv, stdout=subprocess.PIPE, env=environment)
        programs.append(program)
        assert program.stdout is not None
        return program, json.loads(program.stdout.readline())["shim"]

    yield started
    for program in programs:
        program.kill()
        program.communicate()


def ours(home: Path) -> set[int]:
    """Return the pids of the processes below the root of this test, and of the processes that its commands started."""
    token = stored_token(home / "runs" / "r")
    return {pid for pid, env in processes_with_token() if env["ORCH_RUN"] == token}


def fewer(home: Path, limit: int, of: set[int] | None = None) -> None:
    """Wait until at most `limit` processes of this test are left. If `of` is given, only these processes count."""
    began = time.monotonic()
    while len(left := ours(home) if of is None else ours(home) & of) > limit:
        assert time.monotonic() - began < SECONDS, left
        time.sleep(0.01)


def test_killed_root_takes_daemonized_commands_along(start: Start, tmp_path: Path) -> None:
    """Processes end with the root, even if they are in another session, have no parent, or ignore signals."""
    program, _ = start(3)
    assert len(ours(tmp_path)) >= 3 * STRAYS
    program.kill()
    program.wait()
    fewer(tmp_path, 0)


async def test_processes_surviving_root_and_shim_end_when_the_run_is_reopened(start: Start, tmp_path: Path) -> None:
    """The new root finds the processes by the token of the run in their environment."""
    program, shim = start(3)
    os.kill(shim, signal.SIGSTOP)  # otherwise the shim might end the processes before it is killed
    os.kill(shim, signal.SIGKILL)
    program.kill()
    program.wait()
    fewer(tmp_path, 3 * STRAYS)
    left = ours(tmp_path)
    assert left
    async with AsyncOrchestrator(home=tmp_path, run="r", env={}) as o:
        assert len(await o.agents()) == 3
        fewer(tmp_path, 0, left)


def test_only_processes_of_the_run_are_ended(tmp_path: Path) -> None:
    """Processes with a similar token or without a token continue."""
    mine = run_token(tmp_path)
    runs = {"mine": mine, "other": f"{mine}2"}
    started = {
        name: subprocess.Popen(["sleep", "600"], env={**os.environ, "ORCH_RUN": run}) for name, run in runs.items()
    }
    started["none"] = subprocess.Popen(["sleep", "600"])
    try:
        while not {started["mine"].pid, started["other"].pid} <= {pid for pid, _ in processes_with_token()}:
            time.sleep(0.001)  # the children have not yet executed `sleep`
        assert kill_orphans(tmp_path) == 1
        assert started["mine"].wait(SECONDS) == -signal.SIGKILL
        assert (started["other"].poll(), started["none"].poll()) == (None, None)
        assert kill_orphans(tmp_path) == 0
    finally:
        for process in started.values():
            process.kill()
            process.wait()
