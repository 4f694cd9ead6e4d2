"""Forks workers within a few milliseconds. Linux only.

The workers are forked from zygotes, which have already imported all modules.
"""

from __future__ import annotations

import asyncio
import os
import socket
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

from orch_protocol.agent.spec import Template
from orch_protocol.core.errors import LaunchError, UnsupportedPlatformError
from orch_protocol.wire.frames import DECODE_ERRORS
from orch_protocol.wire.zygote_messages import (
    ForkFailed,
    ForkWorker,
    ToolHostExited,
    ToolHostForked,
    WorkerForked,
    WorkerProcessExited,
    ZygoteFailed,
    ZygoteReady,
    decode_report,
    encode,
)
from orch_worker.sandbox.launcher_client import unavailable_reason
from orch_worker.system.linux import exit_status, kill, reap_if_ended
from orch_worker.system.memory_limit import with_memory_limit

from ..tree.interface.events import BOOT_SECONDS
from .base import LaunchRequest
from .descriptors import received_packets, register, release
from .environment import check_platform, command
from .exec import ChildProcess, ChildProcesses, birth_pipe
from .restart_intensity import RestartIntensity
from .shim import ShimClient
from .worker_logs import read_tail

__all__ = ["ZygoteClient", "ZygoteLauncher"]


# --- Client of one zygote ---

IN_FLIGHT: Final = 100
"""Maximum number of forks in progress. The socket takes 160 such packets. A stopped zygote must not block the root."""
SEND_BUFFER: Final = 1 << 20
PACKET_BYTES: Final = 1 << 16


class ZygoteClient:
    """A zygote of `template`. The constructor starts the zygote.

    `failure` is the reason why the zygote ended, None while the zygote runs. Forks can be requested immediately; the
    requests wait in the socket until the zygote is ready. When the zygote ends, all workers of the zygote end too.
    """

    def __init__(
        self,
        template: Template,
        shim: ShimClient,
        children: ChildProcesses,
        *,
        entry: str,
        boot_timeout: float,
        log: Path,
    ) -> None:
        self._template = template
        self.failure: str | None = None
        self._loop = asyncio.get_running_loop()
        self._children = children
        self._log = log
        self._log_start = log.stat().st_size if log.exists() else 0
        self._slots = asyncio.Semaphore(IN_FLIGHT)
        self._last_request_id = 0
        self._waiting: dict[int, tuple[asyncio.Future[ChildProcess], int, LaunchRequest]] = {}
        self._alive: dict[int, ChildProcess] = {}
        self._pidfd = -1
        self._unreaped_pidfds: list[int] = []
        self._control, zygote_socket = map(register, socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET))
        self._control.setblocking(False)
        self._control.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, SEND_BUFFER)
        lifeline, self._lifeline = map(register, os.pipe())
        root = register(os.pidfd_open(os.getpid()))
        shim.start(
            command("zygote", template, entry, str(log.parent)), [zygote_socket.fileno(), lifeline, root], self._started
        )
        for passed in (zygote_socket, lifeline, root):
            release(passed)
        self._loop.add_reader(self._control, self._read)
        self._boot_timer = self._loop.call_later(
            boot_timeout, self.fail, f"the {template} zygote was not ready within {boot_timeout:g} s"
        )

    async def fork(self, request: LaunchRequest) -> ChildProcess:
        """Fork a worker and return it. Raises LaunchError.

        If the call is canceled, the worker is killed as soon as it exists.
        """
        async with self._slots:
            if self.failure is not None:
                raise LaunchError(self.failure)
            reader, lifeline = birth_pipe(request.birth)
            self._last_request_id += 1
            request_id = self._last_request_id
            future: asyncio.Future[ChildProcess] = self._loop.create_future()
            fork = ForkWorker(
                request_id,
                request.agent_id,
                request.incarnation,
                request.ident,
                request.address,
                request.log,
                request.spool,
            )
            self._waiting[request_id] = future, lifeline, request
            try:
                try:
                    socket.send_fds(self._control, [encode(fork)], [reader])
                except (BrokenPipeError, ConnectionResetError):
                    pass  # the zygote has ended; the reason follows
                return await future
            except asyncio.CancelledError:
                if future.done() and not future.cancelled() and future.exception() is None:
                    future.result().kill()
                raise
            except OSError as error:
                raise LaunchError(f"the {self._template} zygote cannot be reached: {error}") from error
            finally:
                release(reader)
                if self._waiting.pop(request_id, None) is not None:
                    release(lifeline)

    def fail(self, reason: str) -> None:
        """End the zygote and all its workers. Reject forks in progress; `reason` is the error."""
        if self.failure is not None:
            return
        self.failure = reason
        self._boot_timer.cancel()
        self._loop.remove_reader(self._control)
        release(self._control)
        release(self._lifeline)
        if self._pidfd >= 0:
            self._loop.remove_reader(self._pidfd)
            kill(self._pidfd)
            self._loop.add_reader(self._pidfd, self.reap)
        for future, lifeline, _ in self._waiting.values():
            self._refuse(future, lifeline, reason)
        self._waiting.clear()
        self._unreaped_pidfds = [child.kill_unreported() for child in self._alive.values()]
        self._alive.clear()

    def _started(self, pidfd: int | None, reason: str) -> None:
        if pidfd is None:
            self.fail(f"the {self._template} zygote could not be started: {reason}")
        elif self.failure is not None:
            kill(pidfd)
            os.close(pidfd)
        else:
            self._pidfd = register(pidfd)
            self._loop.add_reader(pidfd, self._on_zygote_exit)

    def _read(self) -> None:
        for packet, descriptors in received_packets(self._control, PACKET_BYTES):
            if packet:
                self._handle_report(packet, descriptors)
            else:
                # The zygote has closed the socket. Its pidfd reports the exit. If the zygote was never started, the
                # shim reports the error.
                self._loop.remove_reader(self._control)

    def _handle_report(self, packet: bytes, descriptors: list[int]) -> None:
        try:
            report = decode_report(packet)
        except DECODE_ERRORS as error:
            self.fail(f"the {self._template} zygote sent an invalid message: {error}")
            return
        match report:
            case WorkerForked(request_id, pid) if request_id in self._waiting:
                future, lifeline, request = self._waiting.pop(request_id)
                if not descriptors:
                    self._refuse(future, lifeline, "this process has no descriptor left (see `ulimit -n`)")
                    return
                child = self._alive[request_id] = ChildProcess(pid, descriptors[0], lifeline, request.log)
                self._children.add(child)
                if future.done():
                    child.kill()
                else:
                    future.set_result(child)
            case WorkerProcessExited(request_id, code) if request_id in self._alive:
                self._alive.pop(request_id).set_exit_code(code)
            case ToolHostForked(request_id, pid) if request_id in self._alive and descriptors:
                self._alive[request_id].tool_host_started(pid, descriptors[0])
            case WorkerForked() | ToolHostForked():
                for descriptor in descriptors:
                    os.close(descriptor)
            case ToolHostExited(request_id, pid):
                if request_id in self._alive:
                    self._alive[request_id].tool_host_ended(pid)
                self._children.sweep()  # The shim has adopted the commands of the tool host.
            case ForkFailed(request_id, text) if request_id in self._waiting:
                future, lifeline, _ = self._waiting.pop(request_id)
                self._refuse(future, lifeline, with_memory_limit(f"no process could be started for the worker: {text}"))
            case ZygoteReady():
                self._boot_timer.cancel()
            case ZygoteFailed(text):
                self.fail(with_memory_limit(f"the {self._template} zygote could not load its template:\n{text}"))

    def reap(self) -> None:
        """Reap the zygote and its workers after they have ended, so that no zombies remain. Idempotent.

        Normally, the parents of the zygote and of the workers reap them. If this process is the first process of a
        container, and the parents have ended, the zygote and the workers are children of this process.
        """
        if self._pidfd >= 0:
            self._loop.remove_reader(self._pidfd)
        for pidfd in (*self._unreaped_pidfds, self._pidfd):
            if pidfd >= 0:
                reap_if_ended(pidfd)
                release(pidfd)
        self._unreaped_pidfds, self._pidfd = [], -1

    def _refuse(self, future: asyncio.Future[ChildProcess], lifeline: int, reason: str) -> None:
        release(lifeline)
        if not future.done():
            future.set_exception(LaunchError(reason))

    def _on_zygote_exit(self) -> None:
        self._read()
        code = exit_status(self._pidfd)
        log_end = with_memory_limit(read_tail(self._log, self._log_start))
        self.fail(
            f"the {self._template} zygote ended"
            + (f" with {code}" if code is not None else "")
            + (f"; its log ends:\n{log_end}" if log_end else "")
        )


STOP_SECONDS: Final = 5.0
LOG_NAME: Final = "processes.log"


class ZygoteLauncher:
    """A `Launcher` that forks workers. A shim is a child of this process. The shim has one zygote for each template as
    a child, and each zygote has its workers as children.

    All of these processes have ORCH_RUN=`run_id` in their environment. The shim and the zygotes write to the file
    processes.log in `folder`. `entry` is the main function of workers, as "module:function". When a zygote or the shim
    ends, its workers end too. The next launch starts it again, at most three times a minute of `clock`. The launcher
    belongs to the event loop that ran `start`.
    """

    def __init__(
        self,
        run_id: str,
        folder: Path,
        *,
        boot_timeout: float = BOOT_SECONDS,
        entry: str = "orch_worker.process.main:main",
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.environment: Sequence[str] = ()
        self._run_id = run_id
        self._log = folder / LOG_NAME
        self._boot_timeout = boot_timeout
        self._entry = entry
        self._intensity = RestartIntensity(clock=clock)
        self._children = ChildProcesses(self._sweep)
        self._shim: ShimClient | None = None
        self._zygotes: dict[Template, ZygoteClient] = {}
        self._stopped = False

    async def start(self) -> None:
        """Start the shim. `warm` and `launch` start zygotes, of which each needs much processor time."""
        check_platform()
        if sys.platform != "linux":
            raise UnsupportedPlatformError(f"forked workers need Linux, this is {sys.platform}: use the exec launcher")
        self._running_shim()

    def warm(self, template: Template) -> None:
        """Start the zygote of `template` unless it is running.

        Do not wait until the zygote is ready. Raises LaunchError.
        """
        self._running_zygote(template)

    def mount_namespace_problem(self) -> str:
        """Return why commands of the workers cannot have mount namespaces. Return "" if they can."""
        return unavailable_reason()

    async def launch(self, request: LaunchRequest) -> ChildProcess:
        """Fork a worker and return it. Raises LaunchError, after at most `boot_timeout` seconds."""
        try:
            async with asyncio.timeout(self._boot_timeout):
                return await self._running_zygote(request.template).fork(request)
        except TimeoutError:
            raise LaunchError(
                f"agent {request.agent_id}: the {request.template} zygote started no worker within "
                f"{self._boot_timeout:g} s; check whether the machine is overloaded or the zygote is stopped"
            ) from None

    async def stop(self) -> None:
        """End every worker, every zygote and the shim. Wait at most 5 s for the exits."""
        self._stopped = True
        started = time.monotonic()
        await self._children.kill_all(STOP_SECONDS / 2)
        for zygote in self._zygotes.values():
            zygote.fail("the launcher was stopped")
        if self._shim is not None:
            shim, self._shim = self._shim, None
            await shim.stop(max(0.1, STOP_SECONDS - (time.monotonic() - started)))
        for zygote in self._zygotes.values():
            zygote.reap()

    def _running_zygote(self, template: Template) -> ZygoteClient:
        zygote = self._zygotes.get(template)
        if zygote is not None and zygote.failure is None:
            return zygote
        if self._stopped:
            raise LaunchError("the launcher was stopped")
        if zygote is not None and not self._intensity.allow():
            raise LaunchError(
                f"the {template} zygote was restarted {self._intensity.limit} times within {self._intensity.seconds:g}"
                f" s and is not restarted for now; the last failure: {zygote.failure}"
            )
        shim = self._running_shim()
        try:
            zygote = ZygoteClient(
                template,
                shim,
                self._children,
                entry=self._entry,
                boot_timeout=self._boot_timeout,
                log=self._log,
            )
        except OSError as error:
            raise _not_started(error) from error
        self._zygotes[template] = zygote
        return zygote

    def _running_shim(self) -> ShimClient:
        if self._shim is None:
            try:
                self._shim = ShimClient(self._run_id, self._log, self._shim_ended, self.environment)
            except OSError as error:
                raise _not_started(error) from error
        return self._shim

    def _shim_ended(self, reason: str) -> None:
        self._shim = None
        for zygote in self._zygotes.values():
            zygote.fail(reason)

    def _sweep(self) -> None:
        if self._shim is not None:
            self._shim.sweep()


def _not_started(error: OSError) -> LaunchError:
    return LaunchError(
        with_memory_limit(f"the zygote processes, from which workers are forked, cannot be started: {error}")
    )
