"""Kills at every step of archiving: a turn is whole in the conversation or in a holder, and the agent continues."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from asyncio.subprocess import PIPE, STDOUT
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import msgspec
import pytest

from integration import killed_archiving
from leak_check import allow
from orch import ArchivalConfig, AsyncOrchestrator, AsyncSubagent, Config, ScriptedBackend
from orch.processes.in_process import InProcessLauncher
from orch.processes.zygote import ZygoteLauncher
from orch_protocol.agent.config import TriggerConfig
from orch_protocol.core.errors import LockedError
from orch_protocol.core.messages import text_of
from orch_worker.session.log.lock import FolderLock
from session_file import Remains

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="these processes are tied together by Linux")

HERE = Path(__file__).parent
CONFIG = Config(
    archival=ArchivalConfig(
        enabled=True, async_=False, profile="seed", trigger=TriggerConfig(tool_call_threshold=2), answer_tokens=50
    )
)


@pytest.fixture(autouse=True)
def deadly_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The file with the name of the point at which processes kill themselves."""
    roots = [str(HERE.parents[1] / root) for root in ("orchestrator", "worker", "protocol")]
    monkeypatch.setenv("PYTHONPATH", ":".join([*roots, str(HERE)]))
    monkeypatch.setenv("DEADLY", str(tmp_path / "deadly"))
    allow(monkeypatch, "DEADLY")
    (tmp_path / "note.txt").write_text("port = 4711\n")
    return tmp_path / "deadly"


def put(path: Path, point: str | None) -> None:
    """Let new processes kill themselves at `point`. If `point` is None, they live."""
    if point is None:
        path.unlink()
    else:
        path.write_text(point)


@asynccontextmanager
async def mortal(
    tmp_path: Path, deadly_file: Path, point: str
) -> AsyncIterator[tuple[AsyncOrchestrator, AsyncSubagent]]:
    """A root with an agent whose first process is killed, or whose disk fails, at `point`."""
    put(deadly_file, point)
    async with AsyncOrchestrator(
        home=tmp_path / "home",
        env={},
        run="r",
        config=CONFIG,
        launcher=lambda run, folder: ZygoteLauncher(run, folder, entry="killed_archiving:main"),
    ) as o:
        script = ScriptedBackend(killed_archiving.SCRIPT, killed_archiving.SUMMARIES)
        agent = await o.spawn("look", tools=["read_file", "list_files"], backend=script, cwd=tmp_path, name="a")
        put(deadly_file, None)
        yield o, agent


async def survived(o: AsyncOrchestrator, agent: AsyncSubagent, answer: str = "second answer") -> list[str]:
    """Assert that the first turn is not lost and that the agent answers. Return the ids of its archives."""
    folder = Path((await agent.state()).folder)
    Remains(folder).check()
    assert (await agent.query("and?")).text == answer
    remains = Remains(folder)
    remains.check()
    archives = [row.id for row in await o.archives.list()]
    assert archives == list(remains.collapses)
    for holder in archives:
        messages = await o.archives.read(holder)
        assert [message.role for message in messages] == ["user", "assistant", "user", "assistant"]
        assert "4711" in str(messages[2])
        assert text_of(messages[3]) == "The port is 4711."
        assert "4711" in (await (await o.get(holder)).query("which port?")).text
    assert archives, "the next turn's end is the next occasion"
    assert (await o.archives.search("port = 4711"))[0].exact
    return archives


async def until_gone(agent: AsyncSubagent, pid: int | None) -> None:
    """Wait until the process `pid` of the agent has ended. None means that it had ended before."""
    async with asyncio.timeout(10):
        while pid is not None and (await agent.state()).pid == pid:  # noqa: ASYNC110  # another process changes it
            await asyncio.sleep(0.01)


def transcripts(home: Path) -> dict[Path, bytes]:
    """Return the contents of all transcripts."""
    return {path: path.read_bytes() for path in home.glob("sessions/*/session.jsonl")}


async def reopened(home: Path, archives: list[str]) -> None:
    """Assert that opening the run does not change the transcript, and that the agent answers."""
    held = transcripts(home)
    assert held
    async with AsyncOrchestrator(home=home, env={}, run="r", config=CONFIG, launcher=InProcessLauncher) as o:
        agent = await o.get("a")
        assert [row.id for row in await o.archives.list()] == archives
        assert transcripts(home) == held
        assert (await agent.query("last?")).text == "third answer"


async def until_unlocked(home: Path) -> None:
    """Wait until the workers of a killed root have ended."""
    async with asyncio.timeout(30):
        for session in transcripts(home):
            while True:
                try:
                    FolderLock.acquire(session.parent).release()
                    break
                except LockedError:
                    await asyncio.sleep(0.02)


@pytest.mark.parametrize("point", killed_archiving.worker_points())
async def test_killed_worker_during_archiving_keeps_the_reply(point: str, tmp_path: Path, deadly_file: Path) -> None:
    """The caller gets the reply after a kill at any step, because the transcript contains the reply."""
    async with mortal(tmp_path, deadly_file, point) as (o, agent):
        assert (await agent.query("which port?")).text == "The port is 4711."
        assert (await agent.state()).status == "died", "it was not killed"
        archives = await survived(o, agent)
    await reopened(tmp_path / "home", archives)


@pytest.mark.parametrize("point", killed_archiving.root_points())
async def test_killed_root_during_archiving_loses_no_commit(
    point: str, tmp_path: Path, deadly_file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After a kill at any step, the next root finds the committed archives."""
    monkeypatch.setenv("DEADLY", str(deadly_file.with_name("root")))
    put(deadly_file.with_name("root"), point)
    config = msgspec.json.encode(CONFIG).decode()
    died = await asyncio.create_subprocess_exec(
        sys.executable, str(HERE / "killed_archiving.py"), str(tmp_path), config, stdout=PIPE, stderr=STDOUT
    )
    output, _ = await died.communicate()
    assert died.returncode == -signal.SIGKILL, output.decode()
    await until_unlocked(tmp_path)
    async with AsyncOrchestrator(home=tmp_path, env={}, run="r", config=CONFIG, launcher=InProcessLauncher) as o:
        agent = await o.get("a")
        archives = await survived(o, agent)
    await reopened(tmp_path, archives)


@pytest.mark.parametrize("fault", killed_archiving.worker_faults())
async def test_disk_failure_keeps_the_turn_for_later_archiving(fault: str, tmp_path: Path, deadly_file: Path) -> None:
    """The agent's state reports the failure, and the next process archives the turn."""
    async with mortal(tmp_path, deadly_file, fault) as (o, agent):
        reply = await agent.query("which port?")
        assert (reply.text, reply.archived_to) == ("The port is 4711.", None)
        row = await agent.state()
        assert fault.partition(":")[0] in row.repaired
        folder = Path(row.folder)
        Remains(folder).check()
        if fault == "input/output error":
            # The content of the file is uncertain, so the process ends, and the next one reads the file again.
            await until_gone(agent, row.pid)
        else:
            assert len((await agent.show()).messages) == 4
            assert (await agent.query("and?")).text == "second answer"
            os.kill(row.pid or 0, signal.SIGKILL)
            await until_gone(agent, row.pid)
        archives = await survived(o, agent, "third answer" if fault != "input/output error" else "second answer")
        assert len(archives) == 1
