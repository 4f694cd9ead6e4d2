"""Starts a new interpreter for each worker.

This launcher is for systems on which forking a loaded process is unsafe, such as macOS. The start of an interpreter
takes half a second.
"""

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


# --- Worker processes ---

REPORT_SECONDS: Final = 0.5
LOG_SECONDS: Final = 1.0


def birth_pipe(birth: WorkerBirth) -> tuple[int, int]:
    """Write `birth` to a new pipe. Return the read end for the worker, and the write end, which is the lifeline.

    The worker ends when the lifeline is closed or a byte is written to the lifeline. Raises LaunchError if `birth` does
    not fit into the pipe, or if no descriptor is left.
    """
    try:
        data = encode_birth(birth)
        reader, writer = os.pipe()
    except (ValueError, OSError) as error:
        raise LaunchError(f"the birth pipe of the worker could not be created: {error}") from error
    register(reader), register(writer)
    os.set_blocking(writer, False)
    try:
        written = os.write(writer, data)
    except BlockingIOError:
        written = 0
    if written < len(data):
        release(reader)
        release(writer)
        raise LaunchError(f"a pipe accepted {written} of {len(data)} bytes; this user has too many open pipes")
    return reader, writer


class ChildProcess:
    """A worker that was started; implements `WorkerProcess`. Owns `pidfd` and `lifeline` until the worker has ended.

    `reaper` returns the exit code of the ended process. Without a reaper, the launcher calls `set_exit_code`.
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
        self._report_timer: asyncio.TimerHandle | None = None
        self._tool_hosts: dict[int, int] = {}
        """The pidfd of each tool host that the zygote forked for this worker. Keys are pids."""
        self._loop.add_reader(pidfd, self._on_exit)

    def is_running(self) -> bool:
        """Return whether the process is still running.

        The method checks the pidfd, because the pid may be reused before `ended` resolves.
        """
        return is_registered(self._pidfd) and not _has_ended(self._pidfd)

    def owns(self, pid: int) -> bool:
        """Return whether `pid` is the running process of the worker, or of its tool host."""
        if pid == self.pid:
            return self.is_running()
        return pid in self._tool_hosts and not _has_ended(self._tool_hosts[pid])

    def tool_host_started(self, pid: int, pidfd: int) -> None:
        """Register the tool host `pid` of this worker. Takes over `pidfd`."""
        self._tool_hosts[pid] = register(pidfd)

    def tool_host_ended(self, pid: int) -> None:
        """Remove a tool host that has ended."""
        if (pidfd := self._tool_hosts.pop(pid, None)) is not None:
            release(pidfd)

    def terminate(self) -> None:
        """Send SIGTERM."""
        self._signal(signal.SIGTERM)

    def kill(self) -> None:
        """Send SIGKILL."""
        self._signal(signal.SIGKILL)

    def set_exit_code(self, code: int | None) -> None:
        """Set the exit code of the ended process."""
        if self._report_timer is not None:
            self._report_timer.cancel()
        if is_registered(self._pidfd):
            self._loop.remove_reader(self._pidfd)
            release(self._pidfd)
            release(self._lifeline)
            self._pidfd = self._lifeline = -1  # the kernel will reuse these numbers
        for pid in list(self._tool_hosts):
            self.tool_host_ended(pid)
        if not self.ended.done():
            self.ended.set_result(code)

    def kill_unreported(self) -> int:
        """Kill the process. The zygote has ended or is about to end, and will not report the exit.

        Return a pidfd that is used to reap the worker after the zygote has ended. This is necessary if this process is
        the first process of a container, because the worker then becomes its child. Return -1 if the exit is already
        known.
        """
        reaper_pidfd = register(os.dup(self._pidfd)) if is_registered(self._pidfd) else -1
        self._reaper = linux.reap
        self.kill()
        if self._report_timer is not None and not self.ended.done():
            self._on_exit()
        return reaper_pidfd

    def _signal(self, number: signal.Signals) -> None:
        if is_registered(self._pidfd):
            linux.kill(self._pidfd, number)

    def _on_exit(self) -> None:
        if self._reaper is not None:
            self.set_exit_code(self._reaper(self._pidfd))
        elif self._report_timer is None:
            # The worker's zygote reports within a millisecond, unless the zygote is stopped or overloaded.
            self._loop.remove_reader(self._pidfd)
            self._report_timer = self._loop.call_later(REPORT_SECONDS, self._give_up)

    def _give_up(self) -> None:
        self.set_exit_code(linux.exit_status(self._pidfd))


def _has_ended(pidfd: int) -> bool:
    poll = select.poll()
    poll.register(pidfd, select.POLLIN)
    return bool(poll.poll(0))


class ChildProcesses:
    """The running workers of a launcher.

    After each exit of a worker, this class calls `sweep`, which ends the processes that dead processes left behind. It
    also trims the logs of workers.
    """

    def __init__(self, sweep: Callable[[], None]) -> None:
        self.sweep = sweep
        self._alive: set[ChildProcess] = set()
        self._timer: asyncio.TimerHandle | None = None

    def __iter__(self) -> Iterator[ChildProcess]:
        return iter(tuple(self._alive))

    def add(self, child: ChildProcess) -> None:
        """Track `child` until it has ended."""
        self._alive.add(child)
        child.ended.add_done_callback(lambda _: self._discard(child))
        if self._timer is None:
            self._trim_logs()

    async def kill_all(self, seconds: float) -> None:
        """Kill every child and wait at most `seconds` until all have ended."""
        for child in self:
            child.kill()
        if self._alive:
            await asyncio.wait([child.ended for child in self], timeout=seconds)

    def _discard(self, child: ChildProcess) -> None:
        self._alive.discard(child)
        if not self._alive and self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self.sweep()

    def _trim_logs(self) -> None:
        for child in self._alive:
            trim(child.log)
        self._timer = asyncio.get_running_loop().call_later(LOG_SECONDS, self._trim_logs)


STOP_SECONDS: Final = 5.0
PIDFDS: Final = hasattr(os, "pidfd_open")


class ExecProcess(ChildProcess):
    """A worker that is a child of this process.

    A pidfd reports the exit; on systems without pidfds, a thread waits for it.
    """

    def __init__(self, process: subprocess.Popen[bytes], lifeline: int, log: str) -> None:
        self._process = process
        exit_descriptor = os.pidfd_open(process.pid) if PIDFDS else _exit_pipe(process)
        super().__init__(process.pid, exit_descriptor, lifeline, log, self._reap)

    def owns(self, pid: int) -> bool:
        """Return whether `pid` is the running process of the worker, or one that the worker started."""
        return self.is_running() and self.pid in (pid, linux.parent_of(pid))

    def _reap(self, exit_descriptor: int) -> int | None:
        code = linux.reap(exit_descriptor) if PIDFDS else self._process.wait()
        self._process.returncode = code or 0  # prevents Popen from waiting again and from warning
        return code

    def _signal(self, number: signal.Signals) -> None:
        if PIDFDS:
            super()._signal(number)
        else:
            self._process.send_signal(number)


def _exit_pipe(process: subprocess.Popen[bytes]) -> int:
    """Return a descriptor that becomes readable when `process` has ended."""
    reader, writer = map(register, os.pipe())

    def wait() -> None:
        process.wait()
        release(writer)

    threading.Thread(target=wait, name=f"wait-{process.pid}", daemon=True).start()
    return reader


class ExecLauncher:
    """A `Launcher` whose workers are children of this process. Their environment contains ORCH_RUN=`run_id`.

    A worker ends when its birth pipe is closed. Unlike forked workers, these workers have no shim, so processes that
    their tools leave behind keep running.
    """

    def __init__(self, run_id: str, folder: Path, *, entry: str = "orch_worker.process.main:main") -> None:
        self.environment: Sequence[str] = ()
        self._run_id = run_id
        self._folder = folder
        self._entry = entry
        self._children = ChildProcesses(lambda: None)
        self._stopped = False

    async def start(self) -> None:
        """Check that this system can start workers, and that the run folder is writable."""
        check_platform()
        if not os.access(self._folder, os.W_OK):
            raise LaunchError(f"cannot write to {self._folder}, the folder of the run")

    def warm(self, template: Template) -> None:
        """Do nothing, because each worker imports what it needs."""

    def mount_namespace_problem(self) -> str:
        """Return why commands of the workers cannot have mount namespaces. Return "" if they can."""
        return unavailable_reason()

    async def launch(self, request: LaunchRequest) -> ChildProcess:
        """Start a worker. Return it while the worker's interpreter is still starting. Raises LaunchError."""
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
        """Kill every worker and wait at most 5 s for the exits."""
        self._stopped = True
        await self._children.kill_all(STOP_SECONDS)
