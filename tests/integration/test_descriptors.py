"""Programs with few file descriptors: orch refuses a launch before the program runs out of descriptors."""

from __future__ import annotations

import json
import os
import resource
import subprocess
import sys
from pathlib import Path

import pytest

from integration.command_shell import MAIN, SECONDS, Shell

PROGRAM = """
import asyncio, resource, sys
from orch import AsyncOrchestrator, Config, ScriptedBackend, SubagentsConfig

async def main(home, limit):
    resource.setrlimit(resource.RLIMIT_NOFILE, (limit, limit))
    config = Config(subagents=SubagentsConfig(max_concurrent=500))
    async with AsyncOrchestrator(home=home, env={}, config=config) as o:
        made = [o.spawn("x", backend=ScriptedBackend(["yes"])) for _ in range(60)]
        came = await asyncio.gather(*made, return_exceptions=True)
        refused = [str(each) for each in came if type(each).__name__ == "ConcurrencyLimitError"]
        agents = [each for each in came if not isinstance(each, Exception)]
        assert len(agents) + len(refused) == 60, came
        assert all(f"most {limit} file descriptors" in text and "ulimit -n" in text for text in refused)
        answers = await asyncio.gather(*[agent.query("?") for agent in agents])
        assert [answer.text for answer in answers] == ["yes"] * len(agents)
        await o.kill(all=True)
        again = await o.spawn("x", backend=ScriptedBackend(["yes"]))
        assert (await again.query("?")).text == "yes"
        print(len(agents))

asyncio.run(main(sys.argv[1], int(sys.argv[2])))
"""


def test_launches_are_limited_by_available_descriptors(tmp_path: Path) -> None:
    """Some agents start, the errors of the others name `ulimit -n`, and the program continues."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    argv = [sys.executable, "-c", PROGRAM, str(tmp_path), "90"]
    done = subprocess.run(argv, env=environment, capture_output=True, timeout=40, check=False)
    assert (done.returncode, done.stderr) == (0, b"")
    assert 5 <= int(done.stdout) < 60


def test_daemon_raises_its_descriptor_limit(shell: Shell) -> None:
    """The daemon raises the limit to the hard limit, and writes no core files."""
    limit = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    # The command sets the limit, because pytest may have more than 128 descriptors open.
    main = f"import resource; resource.setrlimit(resource.RLIMIT_NOFILE, (128, {limit})); {MAIN}"
    command = shell.start("daemon", "start", "--json", main=main)
    stdout, stderr = command.communicate(timeout=SECONDS)
    assert command.returncode == 0, stderr.decode()
    pid = json.loads(stdout)["pid"]
    assert resource.prlimit(pid, resource.RLIMIT_NOFILE)[0] >= min(limit, 1 << 14)
    assert resource.prlimit(pid, resource.RLIMIT_CORE) == (0, 0)


@pytest.mark.parametrize("argv", [["list"], ["spawn", "x"]], ids=" ".join)
def test_too_few_descriptors_for_the_daemon_are_an_error(argv: list[str], shell: Shell) -> None:
    """With a limit of 20, the error names the limit and `ulimit -n`."""
    main = f"import resource; resource.setrlimit(resource.RLIMIT_NOFILE, (20, 20)); {MAIN}"
    command = shell.start(*argv, main=main)
    _, stderr = command.communicate(timeout=SECONDS)
    assert command.returncode == 1
    (line,) = stderr.decode().splitlines()
    assert line.startswith("orch: cannot start an orchestrator: ")
    assert "of at most 20 file descriptors" in line
    assert "ulimit -n 1024" in line
