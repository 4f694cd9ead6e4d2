"""Processes that the kernel ends for want of memory, and those that somebody else did."""

from __future__ import annotations

import asyncio
import sys
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from orch import AsyncOrchestrator, ScriptedBackend
from orch.processes.oom_detector import OomDetector
from orch_protocol.core.errors import AgentDiedError

EATER = """
from orch import hook

@hook("before_turn")
def eat(event, ctx):
    global eaten
    eaten = b"x" * (SIZE << 20)
"""

PROGRAM = """
import sys
from orch import Config, HooksConfig, Orchestrator, OrchError, ScriptedBackend

with open(sys.argv[1] + "/cgroup.procs", "w") as file:
    file.write("0")
config = Config(hooks=HooksConfig(load=(sys.argv[3],)))
with Orchestrator(home=sys.argv[2], config=config) as o:
    agent = o.spawn("eat", backend=ScriptedBackend(["full"]))
    try:
        agent.query("go")
    except OrchError as error:
        print(error.outcome, agent.state().outcome, agent.state().status, error)
"""


@pytest.fixture
def group() -> Iterator[Path]:
    """A control group with 120 MiB of memory, where that can be had."""
    ours = {each.split(":")[1]: each.split(":", 2)[2] for each in Path("/proc/self/cgroup").read_text().splitlines()}
    kind = "memory" if "memory" in ours else ""
    base = Path("/sys/fs/cgroup", kind, ours.get(kind, "/").lstrip("/"))
    folder = base / f"orch-{uuid.uuid4().hex[:8]}"
    try:
        folder.mkdir()
    except OSError as error:
        pytest.skip(f"no control group can be made here: {error}")
    try:
        try:
            (folder / ("memory.limit_in_bytes" if kind else "memory.max")).write_text(str(120 << 20))
        except OSError as error:
            pytest.skip(f"a control group's memory cannot be bounded here: {error}")
        yield folder
    finally:
        folder.rmdir()


def eater(folder: Path, megabytes: int) -> str:
    """Return the file of a hook that takes so much memory in its agent's process."""
    path = folder / "eater.py"
    path.write_text(EATER.replace("SIZE", str(megabytes)))
    return str(path)


async def test_a_process_that_the_kernel_ends_for_want_of_memory_says_so(
    group: Path, tmp_path: Path, home: Path
) -> None:
    """Whoever waits for its agent is told, and who looks at it later."""
    argv = (sys.executable, "-c", PROGRAM, str(group), str(home), eater(tmp_path, 400))
    root = await asyncio.create_subprocess_exec(*argv, stdout=asyncio.subprocess.PIPE)
    said, _ = await asyncio.wait_for(root.communicate(), 60)
    assert said.decode().startswith("oom oom died ")
    assert "out of memory: the kernel killed it" in said.decode()


async def test_a_kill_that_nobody_counted_is_no_want_of_memory(home: Path, tmp_path: Path) -> None:
    """What cannot be told is not told: the process is lost; where the kernel counted one meanwhile it was that."""
    counter = tmp_path / "memory.events"
    counter.write_text("oom_kill 7\n")
    async with AsyncOrchestrator(home=home) as o:
        o.supervisor.workers.ooms = OomDetector(counter)
        sleep = {"tool": "bash", "input": {"command": "kill -9 $PPID; sleep 60"}}
        count = {"tool": "bash", "input": {"command": f"echo oom_kill 8 > {counter}; kill -9 $PPID; sleep 60"}}
        agent = await o.spawn("work", backend=ScriptedBackend([sleep, count]), tools=["bash"])
        for outcome in ("lost", "oom"):
            with pytest.raises(AgentDiedError) as raised:
                await agent.query("go")
            assert raised.value.outcome == (await agent.state()).outcome == outcome
