"""Workers that the kernel kills for lack of memory, and workers that are killed for other reasons."""

from __future__ import annotations

import asyncio
import sys
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from integration.worker_processes import END, register_end
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
    """A control group with 120 MiB of memory. The test is skipped if this system allows no such group."""
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
    """Return the file of a hook that allocates `megabytes` MiB in its agent's process."""
    path = folder / "eater.py"
    path.write_text(EATER.replace("SIZE", str(megabytes)))
    return str(path)


async def test_oom_kill_is_reported(group: Path, tmp_path: Path, home: Path) -> None:
    """The error of the query and the state of the agent have the outcome `oom`."""
    argv = (sys.executable, "-c", PROGRAM, str(group), str(home), eater(tmp_path, 400))
    root = await asyncio.create_subprocess_exec(*argv, stdout=asyncio.subprocess.PIPE)
    output, _ = await asyncio.wait_for(root.communicate(), 60)
    assert output.decode().startswith("oom oom died ")
    assert "out of memory: the kernel killed this process" in output.decode()


async def test_uncounted_kill_is_not_reported_as_oom(home: Path, tmp_path: Path) -> None:
    """A kill has the outcome `oom` only if the kernel's counter increased."""
    counter = tmp_path / "memory.events"
    counter.write_text("oom_kill 7\n")
    async with AsyncOrchestrator(home=home) as o:
        o.supervisor.workers.oom_detector = OomDetector(counter)
        register_end(o)
        count = {"tool": "bash", "input": {"command": f"echo oom_kill 8 > {counter}"}}
        script = ScriptedBackend([END, count, END])
        agent = await o.spawn("work", backend=script, tools=["bash", "end_process"])
        for outcome in ("lost", "oom"):
            with pytest.raises(AgentDiedError) as raised:
                await agent.query("go")
            assert raised.value.outcome == (await agent.state()).outcome == outcome
