"""The root's side of a zygote. The test acts as the zygote."""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from orch.processes.base import LaunchRequest
from orch.processes.exec import ChildProcess, ChildProcesses
from orch.processes.zygote import IN_FLIGHT, ZygoteClient
from orch_protocol.agent.spec import WorkerBirth
from orch_protocol.core.errors import LaunchError
from orch_protocol.wire.zygote_messages import (
    ForkFailed,
    Report,
    WorkerForked,
    WorkerProcessExited,
    ZygoteFailed,
    ZygoteReady,
    decode_fork,
    encode,
)


class Zygote:
    """A fake zygote together with the fake shim that starts it."""

    def __init__(self, folder: Path, boot_timeout: float = 20.0) -> None:
        self.folder = folder
        self.pipes: list[int] = []
        self.children = ChildProcesses(lambda: None)
        shim: Any = self
        self.forker = ZygoteClient(
            "lean", shim, self.children, entry="x:main", boot_timeout=boot_timeout, log=folder / "processes.log"
        )

    def start(self, argv: list[str], descriptors: list[int], started: Any) -> None:
        """Act as the shim: keep copies of the passed descriptors."""
        assert argv[-4:] == ["zygote", "lean", "x:main", str(self.folder)]
        self.started = started
        control, lifeline, root = map(os.dup, descriptors)
        self.control = socket.socket(fileno=control)
        self.control.setblocking(False)
        self.pipes += [lifeline, root]

    def hear(self) -> list[int]:
        """Return the numbers of the requested workers."""
        found = []
        while True:
            try:
                packet, descriptors, _, _ = socket.recv_fds(self.control, 1 << 16, 1)
            except BlockingIOError:
                return found
            self.pipes += descriptors
            found.append(decode_fork(packet).req)

    def say(self, report: Report, *descriptors: int) -> None:
        """Send a report to the root."""
        socket.send_fds(self.control, [encode(report)], descriptors)

    def fork(self, agent: str = "a1") -> asyncio.Task[ChildProcess]:
        """Request a worker."""
        log = str(self.folder / "log")
        request = LaunchRequest(agent, 1, b"i", "x", WorkerBirth(b"t"), "lean", log, str(self.folder))
        return asyncio.ensure_future(self.forker.fork(request))

    def close(self) -> None:
        self.forker.fail("the test is over")
        self.control.close()
        for pipe in self.pipes:
            os.close(pipe)


@pytest.fixture
async def zygote(tmp_path: Path) -> Any:
    """A fake zygote."""
    zygote = Zygote(tmp_path)
    yield zygote
    zygote.close()


@pytest.fixture
def ends() -> Iterator[tuple[int, int]]:
    """A pipe in place of a pidfd: the process ends when the second end is closed."""
    reader, writer = os.pipe()
    yield reader, writer
    os.close(reader)
    os.close(writer)


async def turns(count: int = 5) -> None:
    """Run the callbacks that are ready."""
    for _ in range(count):
        await asyncio.sleep(0)


async def test_zygote_forks_a_worker_and_reports_its_exit(zygote: Zygote, ends: tuple[int, int]) -> None:
    """The child has the reported pid and the reported exit code."""
    task = zygote.fork()
    await turns()
    [req] = zygote.hear()
    zygote.say(ZygoteReady(1, 8))
    zygote.say(WorkerForked(req, 77), ends[0])
    child = await task
    assert child.pid == 77
    zygote.say(WorkerProcessExited(req, 7))
    assert await child.ended == 7


async def test_exit_before_the_launch_returns_is_not_lost(zygote: Zygote, ends: tuple[int, int]) -> None:
    """If the worker ends before its launch has returned, its exit code is kept."""
    task = zygote.fork()
    await turns()
    [req] = zygote.hear()
    zygote.say(WorkerForked(req, 77), ends[0])
    zygote.say(WorkerProcessExited(req, -9))
    assert await (await task).ended == -9


async def test_refused_fork_is_a_launch_error(zygote: Zygote) -> None:
    """The LaunchError contains the error message of the system."""
    task = zygote.fork()
    await turns()
    zygote.say(ForkFailed(zygote.hear()[0], "[Errno 11] Resource temporarily unavailable"))
    with pytest.raises(LaunchError, match=r"no process could be started for the worker: .*temporarily unavailable"):
        await task


async def test_worker_without_a_pidfd_fails_to_launch(zygote: Zygote) -> None:
    """The lifeline of the worker is closed, so the worker ends."""
    task = zygote.fork()
    await turns()
    [req] = zygote.hear()
    pipe = zygote.pipes[-1]
    zygote.say(WorkerForked(req, 77))
    with pytest.raises(LaunchError, match="no descriptor left"):
        await task
    while os.read(pipe, 1):
        pass  # reads the birth data, and then the end of file that ends the worker


async def test_failed_boot_fails_all_launches_with_the_traceback(zygote: Zygote) -> None:
    """Waiting launches and later ones get the traceback."""
    waiting = zygote.fork()
    await turns()
    zygote.say(ZygoteFailed("ImportError: nothing"))
    for task in (waiting, zygote.fork()):
        with pytest.raises(LaunchError, match="could not load its template:\nImportError: nothing"):
            await task


async def test_malformed_report_ends_the_zygote(zygote: Zygote) -> None:
    """The pending launch fails, and the zygote's connection is closed."""
    task = zygote.fork()
    await turns()
    zygote.control.send(b"\xff\xff")
    with pytest.raises(LaunchError, match="sent an invalid message"):
        await task
    await turns()
    assert zygote.forker.failure is not None


async def test_silent_zygote_times_out_at_boot(tmp_path: Path) -> None:
    """A launch fails if the zygote is not ready within the time limit."""
    zygote = Zygote(tmp_path, boot_timeout=0.0)
    with pytest.raises(LaunchError, match="not ready within 0 s"):
        await zygote.fork()
    zygote.close()


async def test_shim_error_is_quoted(zygote: Zygote) -> None:
    """The LaunchError contains the reason from the shim."""
    task = zygote.fork()
    await turns()
    zygote.control.close()
    await turns()
    assert not task.done()
    zygote.started(None, "no more processes")
    with pytest.raises(LaunchError, match="could not be started: no more processes"):
        await task


async def test_end_of_the_zygote_quotes_its_log(zygote: Zygote, monkeypatch: pytest.MonkeyPatch) -> None:
    """The LaunchError contains the end of the zygote's log."""
    monkeypatch.setattr("orch.processes.zygote.kill", lambda _: None)
    (zygote.folder / "processes.log").write_text("Fatal Python error\n")
    task = zygote.fork()
    await turns()
    reader, writer = os.pipe()
    zygote.started(reader, "")
    os.close(writer)
    with pytest.raises(LaunchError, match="Fatal Python error"):
        await task


async def test_at_most_a_hundred_forks_are_pending(zygote: Zygote) -> None:
    """The limit prevents that a stopped zygote blocks the root."""
    tasks = [zygote.fork() for _ in range(IN_FLIGHT + 5)]
    await turns()
    asked = zygote.hear()
    assert len(asked) == IN_FLIGHT
    for req in asked[:5]:
        zygote.say(ForkFailed(req, "full"))
    await turns(10)
    assert len(zygote.hear()) == 5
    zygote.forker.fail("enough")
    results = await asyncio.gather(*tasks, return_exceptions=True)
    assert {type(result) for result in results} == {LaunchError}


async def test_launch_cancelled_after_its_answer_ends_the_worker(
    zygote: Zygote, ends: tuple[int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The forked worker is killed."""
    killed: list[int] = []
    monkeypatch.setattr("orch.processes.exec.linux.kill", lambda _, number: killed.append(number))
    task = zygote.fork()
    await turns()
    [req] = zygote.hear()
    zygote.say(WorkerForked(req, 77), ends[0])
    zygote.forker._read()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert killed == [9]
    zygote.say(WorkerProcessExited(req, -9))
    await turns()
