"""A fresh interpreter for each worker, where forking a loaded process is unsafe (macOS). Half a second each."""

from __future__ import annotations

import asyncio
import os
import select
import signal
import subprocess
import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Final

from orch_protocol.agent.spec import Template, WorkerBirth
from orch_protocol.core.errors import LaunchError
from orch_protocol.wire.zygote_messages import ForkWorker, encode, encode_birth
from orch_worker.sandbox.launcher_client import unavailable_reason
from orch_worker.system import linux

from .base import LaunchRequest
from .descriptors import is_registered, register, release
from .environment import check_platform, command, worker_environment
from .worker_logs import open_log, trim

__all__ = ["ChildProcess", "ChildProcesses", "ExecLauncher", "birth_pipe"]


# --- A worker's process as the root holds it ---

REPORT_SECONDS: Final = 0.5
LOG_SECONDS: Final = 1.0


def birth_pipe(birth: WorkerBirth) -> tuple[int, int]:
    """Return the ends of a new pipe that holds `birth`: the worker's to read, and ours, which is its lifeline.

    Closing the lifeline ends the worker that reads the other end, whatever it is doing; so does a byte. Raises
    LaunchError for a birth that no pipe takes, or when there is no descriptor left.
    """
    try:
        data = encode_birth(birth)
        reader, writer = os.pipe()
    except (ValueError, OSError) as error:
        raise LaunchError(f"no birth pipe for the worker: {error}") from error
    register(reader), register(writer)
    os.set_blocking(writer, False)
    try:
        written = os.write(writer, data)
    except BlockingIOError:
        written = 0
    if written < len(data):
        release(reader)
        release(writer)
        raise LaunchError(f"a pipe took {written} of {len(data)} bytes: too many pipes are open for this user")
    return reader, writer


class ChildProcess:
    """A started worker (a `WorkerProcess`). Owns `pidfd` and `lifeline` until the worker is gone.

    `reaper` tells the exit code once the process has ended; without one the code is expected by `report`.
    """

    def __init__(
        self, pid: int, pidfd: int, lifeline: int, log: str, reaper: Callable[[int], int | None] | None = None
    ) -> None:
        self._loop = asyncio.get_running_loop()
        self.pid = pid
        self.log = log
        self.ended: asyncio.Future[int | None] = self._loop.create_future()
        self._pidfd = register(pidfd)
        self._lifeline = lifeline
        self._reaper = reaper
        self._patience: asyncio.TimerHandle | None = None
        self._loop.add_reader(pidfd, self._gone)

    def is_running(self) -> bool:
        """Return whether the process has not ended. Its pid may be reused before `ended` resolves."""
        if not is_registered(self._pidfd):
            return False
        poll = select.poll()
        poll.register(self._pidfd, select.POLLIN)
        return not poll.poll(0)

    def terminate(self) -> None:
        """Send SIGTERM."""
        self._signal(signal.SIGTERM)

    def kill(self) -> None:
        """Send SIGKILL."""
        self._signal(signal.SIGKILL)

    def report(self, code: int | None) -> None:
        """Take `code` as the exit code of the process, which is gone."""
        if self._patience is not None:
            self._patience.cancel()
        if is_registered(self._pidfd):
            self._loop.remove_reader(self._pidfd)
            release(self._pidfd)
            release(self._lifeline)
            self._pidfd = self._lifeline = -1  # the numbers will be another's
        if not self.ended.done():
            self.ended.set_result(code)

    def orphan(self) -> int:
        """End the process, of which nobody will report. Of the first process of a container it is a child now, or soon.

        Returns a pidfd by which it can be buried once its parent has ended, -1 where it has been.
        """
        grave = register(os.dup(self._pidfd)) if is_registered(self._pidfd) else -1
        self._reaper = linux.reap
        self.kill()
        if self._patience is not None and not self.ended.done():
            self._gone()
        return grave

    def _signal(self, number: signal.Signals) -> None:
        if is_registered(self._pidfd):
            linux.kill(self._pidfd, number)

    def _gone(self) -> None:
        if self._reaper is not None:
            self.report(self._reaper(self._pidfd))
        elif self._patience is None:
            # Its zygote reports within a millisecond, unless it is stopped or drowning.
            self._loop.remove_reader(self._pidfd)
            self._patience = self._loop.call_later(REPORT_SECONDS, self._give_up)

    def _give_up(self) -> None:
        self.report(linux.exit_status(self._pidfd))


class ChildProcesses:
    """The living workers of a launcher. Keeps their logs short; calls `on_end` after each end."""

    def __init__(self, on_end: Callable[[], None]) -> None:
        self._on_end = on_end
        self._alive: set[ChildProcess] = set()
        self._timer: asyncio.TimerHandle | None = None

    def __iter__(self) -> Iterator[ChildProcess]:
        return iter(tuple(self._alive))

    def add(self, child: ChildProcess) -> None:
        """Keep `child` until it has ended."""
        self._alive.add(child)
        child.ended.add_done_callback(lambda _: self._discard(child))
        if self._timer is None:
            self._trim_logs()

    async def end(self, seconds: float) -> None:
        """Kill every child and wait until all are gone, at most `seconds`."""
        for child in self:
            child.kill()
        if self._alive:
            await asyncio.wait([child.ended for child in self], timeout=seconds)

    def _discard(self, child: ChildProcess) -> None:
        self._alive.discard(child)
        if not self._alive and self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._on_end()

    def _trim_logs(self) -> None:
        for child in self._alive:
            trim(child.log)
        self._timer = asyncio.get_running_loop().call_later(LOG_SECONDS, self._trim_logs)


STOP_SECONDS: Final = 5.0
PIDFDS: Final = hasattr(os, "pidfd_open")


class ExecProcess(ChildProcess):
    """A worker that is this process's own child: watched by its pidfd, or by a thread where there are none."""

    def __init__(self, process: subprocess.Popen[bytes], lifeline: int, log: str) -> None:
        self._process = process
        end = os.pidfd_open(process.pid) if PIDFDS else _readable_at_end(process)
        super().__init__(process.pid, end, lifeline, log, self._reap)

    def _reap(self, end: int) -> int | None:
        code = linux.reap(end) if PIDFDS else self._process.wait()
        self._process.returncode = code or 0  # it must neither wait for it again nor warn
        return code

    def _signal(self, number: signal.Signals) -> None:
        if PIDFDS:
            super()._signal(number)
        else:
            self._process.send_signal(number)


def _readable_at_end(process: subprocess.Popen[bytes]) -> int:
    reader, writer = map(register, os.pipe())

    def wait() -> None:
        process.wait()
        release(writer)

    threading.Thread(target=wait, name=f"wait-{process.pid}", daemon=True).start()
    return reader


class ExecLauncher:
    """A `Launcher` whose workers are this process's own children. They carry ORCH_RUN=`run_id`.

    A worker ends with its birth pipe. Nothing adopts what its tools leave behind, which forked workers' shim does.
    """

    def __init__(self, run_id: str, folder: Path, *, entry: str = "orch_worker.process.main:main") -> None:
        self.environment: Sequence[str] = ()
        self._run_id = run_id
        self._folder = folder
        self._entry = entry
        self._children = ChildProcesses(lambda: None)
        self._stopped = False

    async def start(self) -> None:
        """Check that workers can be started here, and have a folder for their logs."""
        check_platform()
        if not os.access(self._folder, os.W_OK):
            raise LaunchError(f"cannot write to {self._folder}, the folder of the run")

    def warm(self, template: Template) -> None:
        """Do nothing: each worker imports what it needs."""

    def mounts_missing(self) -> str:
        """Return why commands of its workers cannot have mount namespaces of their own, "" when they can."""
        return unavailable_reason()

    async def launch(self, request: LaunchRequest) -> ChildProcess:
        """Return the worker, whose interpreter has only begun to start. Raises LaunchError."""
        if self._stopped:
            raise LaunchError("the launcher was stopped")
        reader, lifeline = birth_pipe(request.birth)
        try:
            child = ExecProcess(self._start(request, reader), lifeline, request.log)
        except OSError as error:
            release(lifeline)
            raise LaunchError(f"agent {request.agent_id}: no process could be started: {error}") from error
        finally:
            release(reader)
        self._children.add(child)
        return child

    def _start(self, request: LaunchRequest, reader: int) -> subprocess.Popen[bytes]:
        fork = ForkWorker(
            0, request.agent_id, request.incarnation, request.ident, request.address, request.log, request.spool
        )
        with open(open_log(Path(request.log)), "ab") as output:
            return subprocess.Popen(
                command("worker", self._entry, str(reader), encode(fork).hex()),
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                env=worker_environment(self._run_id, self.environment),
                pass_fds=(reader,),
                process_group=0,
            )

    async def stop(self) -> None:
        """End every worker and wait until they are gone (at most 5 s)."""
        self._stopped = True
        await self._children.end(STOP_SECONDS)
