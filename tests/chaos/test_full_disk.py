"""Full disks: requests fail with a clear error, no data is lost, and agents continue when there is space again."""

from __future__ import annotations

import resource
import subprocess
import sys
from pathlib import Path

import pytest

from orch import AsyncOrchestrator, ScriptedBackend
from orch_protocol.core.errors import StoreError
from orch_protocol.core.messages import text_of
from orch_worker.session.session_reader import read_session


def limit_files(pid: int, size: int) -> None:
    """Limit the size of the files that process `pid` writes to `size` bytes, as a full disk does."""
    hard = resource.prlimit(pid, resource.RLIMIT_FSIZE)[1]
    resource.prlimit(pid, resource.RLIMIT_FSIZE, (size, hard))


async def test_worker_on_a_full_disk_fails_its_query_only(tmp_path: Path) -> None:
    """The StoreError names the transcript, the transcript is unchanged, and the next query with space is answered."""
    async with AsyncOrchestrator(home=tmp_path, env={}) as o:
        agent = await o.spawn("work", backend=ScriptedBackend(["one", "two", "three"]))
        await agent.query("first")
        assert agent.pid
        folder = Path((await agent.state()).folder)
        size = (folder / "session.jsonl").stat().st_size
        limit_files(agent.pid, size + 10)
        with pytest.raises(StoreError, match=r"session\.jsonl"):
            await agent.query("second")
        assert (folder / "session.jsonl").stat().st_size == size
        limit_files(agent.pid, resource.RLIM_INFINITY)
        assert (await agent.query("third")).text == "two"
    texts = [text_of(message) for message in read_session(folder).messages]
    assert texts[-2:] == ["third", "two"]


async def test_root_on_a_full_disk_refuses_queries_and_recovers(tmp_path: Path) -> None:
    """Queries and spawns raise a StoreError that names the journal; existing agents stay, and answer when there is
    space.
    """
    import os

    async with AsyncOrchestrator(home=tmp_path, env={}, run="full") as o:
        agent = await o.spawn("work", backend=ScriptedBackend(["one", "two"]))
        await agent.query("first")
        journal = tmp_path / "runs" / "full" / "journal.jsonl"
        limit_files(os.getpid(), journal.stat().st_size + 10)
        try:
            with pytest.raises(StoreError, match=r"journal\.jsonl"):
                await agent.query("second")
            with pytest.raises(StoreError, match=r"journal\.jsonl"):
                await o.spawn("more", backend=ScriptedBackend(["x"]))
        finally:
            limit_files(os.getpid(), resource.RLIM_INFINITY)
        assert (await agent.state()).status == "idle"
        assert (await agent.query("third")).text == "two"
        assert len(await o.agents(all=True)) == 1


def test_zygote_starts_without_a_writable_folder(tmp_path: Path) -> None:
    """The zygote starts although it can write neither its rehearsal folder nor its output."""
    (tmp_path / "file").touch()
    boot = "import os, pathlib, sys; from orch_worker.process import zygote; "
    boot += "zygote._boot('lean', 'orch_worker.process.main:main', pathlib.Path(sys.argv[1])); os._exit(7)"
    with open("/dev/full", "w") as full:
        command = [sys.executable, "-P", "-c", boot, str(tmp_path / "file")]
        done = subprocess.run(command, stdout=full, stderr=full, timeout=60, check=False)
    assert done.returncode == 7
