"""Workers forked from zygotes that have imported everything already: a few milliseconds each. Linux."""

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
    WorkerForked,
    WorkerProcessExited,
    ZygoteFailed,
    ZygoteReady,
    decode_report,
    encode,
)
from orch_worker.sandbox.launcher_client import unavailable_reason
from orch_worker.system.linux import exit_status, kill, reap_if_ended

from ..tree.journal.events import BOOT_SECONDS
from .base import LaunchRequest
from .descriptors import is_registered, register, release
from .environment import check_platform, command
from .exec import ChildProcess, ChildProcesses, birth_pipe
from .restart_intensity import RestartIntensity
from .shim import ShimClient
from .worker_logs import read_tail

__all__ = ["ZygoteClient", "ZygoteLauncher"]


# --- The root's end of one zygote ---

IN_FLIGHT: Final = 100
"""Forks asked for and not answered. Its socket takes 160 of these packets; a stopped zygote must not make us wait."""
SEND_BUFFER: Final = 1 << 20
PACKET_BYTES: Final = 1 << 16


class ZygoteClient:
    """A zygote of `template`, booting from the moment this exists. `failure` says why it is gone, once it is.

    Forks can be asked for at once; they wait in its socket until it is warm. When it ends, so do all its workers.
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
        self._req = 0
        self._waiting: dict[int, tuple[asyncio.Future[ChildProcess], int, LaunchRequest]] = {}
        self._alive: dict[int, ChildProcess] = {}
        self._pidfd = -1
        self._graves: list[int] = []
        self._control, theirs = map(register, socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET))
        self._control.setblocking(False)
        self._control.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, SEND_BUFFER)
        lifeline, self._lifeline = map(register, os.pipe())
        root = register(os.pidfd_open(os.getpid()))
        shim.start(
            command("zygote", template, entry, str(log.parent)), [theirs.fileno(), lifeline, root], self._started
        )
        for passed in (theirs, lifeline, root):
            release(passed)
        self._loop.add_reader(self._control, self._read)
        self._booting = self._loop.call_later(
            boot_timeout, self.fail, f"the {template} zygote was not ready within {boot_timeout:g} s"
        )

    async def fork(self, request: LaunchRequest) -> ChildProcess:
        """Return a new worker. Raises LaunchError. When cancelled, the worker ends as soon as it exists."""
        async with self._slots:
            if self.failure is not None:
                raise LaunchError(self.failure)
            reader, lifeline = birth_pipe(request.birth)
            self._req += 1
            req = self._req
            future: asyncio.Future[ChildProcess] = self._loop.create_future()
            fork = ForkWorker(
                req,
                request.agent_id,
                request.incarnation,
                request.ident,
                request.address,
                request.log,
                request.spool,
            )
            self._waiting[req] = future, lifeline, request
            try:
                try:
                    socket.send_fds(self._control, [encode(fork)], [reader])
                except (BrokenPipeError, ConnectionResetError):
                    pass  # it has ended; why is about to be heard
                return await future
            except asyncio.CancelledError:
                if future.done() and not future.cancelled() and future.exception() is None:
                    future.result().kill()
                raise
            except OSError as error:
                raise LaunchError(f"the {self._template} zygote does not listen: {error}") from error
            finally:
                release(reader)
                if self._waiting.pop(req, None) is not None:
                    release(lifeline)

    def fail(self, reason: str) -> None:
        """End the zygote and all its workers, and refuse what waits for it, for `reason`."""
        if self.failure is not None:
            return
        self.failure = reason
        self._booting.cancel()
        self._loop.remove_reader(self._control)
        release(self._control)
        release(self._lifeline)
        if self._pidfd >= 0:
            self._loop.remove_reader(self._pidfd)
            kill(self._pidfd)
            self._loop.add_reader(self._pidfd, self.bury)
        for future, lifeline, _ in self._waiting.values():
            self._refuse(future, lifeline, reason)
        self._waiting.clear()
        self._graves = [child.orphan() for child in self._alive.values()]
        self._alive.clear()

    def _started(self, pidfd: int | None, reason: str) -> None:
        if pidfd is None:
            self.fail(f"the {self._template} zygote could not be started: {reason}")
        elif self.failure is not None:
            kill(pidfd)
            os.close(pidfd)
        else:
            self._pidfd = register(pidfd)
            self._loop.add_reader(pidfd, self._read_the_last)

    def _read(self) -> None:
        while is_registered(self._control):
            try:
                packet, descriptors, _, _ = socket.recv_fds(self._control, PACKET_BYTES, 1, socket.MSG_CMSG_CLOEXEC)
            except BlockingIOError:
                return
            except ConnectionResetError:
                packet, descriptors = b"", []
            if not packet:
                # Its pidfd follows, or what the shim has to say if it was never started.
                self._loop.remove_reader(self._control)
                return
            self._hear(packet, descriptors)

    def _hear(self, packet: bytes, descriptors: list[int]) -> None:
        try:
            report = decode_report(packet)
        except DECODE_ERRORS as error:
            self.fail(f"the {self._template} zygote spoke nonsense: {error}")
            return
        match report:
            case WorkerForked(req, pid) if req in self._waiting:
                future, lifeline, request = self._waiting.pop(req)
                if not descriptors:
                    self._refuse(future, lifeline, "this process has no descriptor left (see `ulimit -n`)")
                    return
                child = self._alive[req] = ChildProcess(pid, descriptors[0], lifeline, request.log)
                self._children.add(child)
                if future.done():
                    child.kill()
                else:
                    future.set_result(child)
            case WorkerForked():
                for descriptor in descriptors:
                    os.close(descriptor)
            case WorkerProcessExited(req, code) if req in self._alive:
                self._alive.pop(req).report(code)
            case ForkFailed(req, text) if req in self._waiting:
                future, lifeline, _ = self._waiting.pop(req)
                self._refuse(future, lifeline, f"no process for the worker: {text}")
            case ZygoteReady():
                self._booting.cancel()
            case ZygoteFailed(text):
                self.fail(f"the {self._template} zygote could not load its template:\n{text}")

    def bury(self) -> None:
        """See to it that the zygote, which has ended, and its workers are no zombies; again, it does nothing.

        Their parents do that. Where those are gone, they have fallen to this process, if it is a container's first.
        """
        if self._pidfd >= 0:
            self._loop.remove_reader(self._pidfd)
        for pidfd in (*self._graves, self._pidfd):
            if pidfd >= 0:
                reap_if_ended(pidfd)
                release(pidfd)
        self._graves, self._pidfd = [], -1

    def _refuse(self, future: asyncio.Future[ChildProcess], lifeline: int, reason: str) -> None:
        release(lifeline)
        if not future.done():
            future.set_exception(LaunchError(reason))

    def _read_the_last(self) -> None:
        self._read()
        code = exit_status(self._pidfd)
        said = read_tail(self._log, self._log_start)
        self.fail(
            f"the {self._template} zygote ended"
            + (f" with {code}" if code is not None else "")
            + (f"; its log ends:\n{said}" if said else "")
        )


STOP_SECONDS: Final = 5.0
LOG_NAME: Final = "processes.log"


class ZygoteLauncher:
    """A `Launcher` with one shim below this process, one zygote a template below the shim, workers below those.

    All of them carry ORCH_RUN=`run_id`; shim and zygotes write to `folder`/processes.log. `entry` names the workers'
    main, "module:function". A zygote or shim that ends takes its workers along and is started again by the next
    launch, at most three times a minute of `clock`. Belongs to the event loop that `start` ran in.
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
        self._forkers: dict[Template, ZygoteClient] = {}
        self._stopped = False

    async def start(self) -> None:
        """Start the shim and the lean zygote; returns before that is warm."""
        check_platform()
        if sys.platform != "linux":
            raise UnsupportedPlatformError(f"forked workers need Linux, this is {sys.platform}: use the exec launcher")
        self.warm("lean")

    def warm(self, template: Template) -> None:
        """Boot the zygote of `template` unless it is up or booting; returns at once. Raises LaunchError."""
        self._forker(template)

    def mounts_missing(self) -> str:
        """Return why commands of its workers cannot have mount namespaces of their own, "" when they can."""
        return unavailable_reason()

    async def launch(self, request: LaunchRequest) -> ChildProcess:
        """Return the forked worker. Raises LaunchError, at the latest after `boot_timeout` seconds."""
        try:
            async with asyncio.timeout(self._boot_timeout):
                return await self._forker(request.template).fork(request)
        except TimeoutError:
            raise LaunchError(
                f"agent {request.agent_id}: the {request.template} zygote made no worker within "
                f"{self._boot_timeout:g} s; is the machine overloaded, or the process stopped?"
            ) from None

    async def stop(self) -> None:
        """End every worker, zygote and the shim, and wait until they are gone (at most 5 s)."""
        self._stopped = True
        started = time.monotonic()
        await self._children.end(STOP_SECONDS / 2)
        for forker in self._forkers.values():
            forker.fail("the launcher was stopped")
        if self._shim is not None:
            shim, self._shim = self._shim, None
            await shim.stop(max(0.1, STOP_SECONDS - (time.monotonic() - started)))
        for forker in self._forkers.values():
            forker.bury()

    def _forker(self, template: Template) -> ZygoteClient:
        forker = self._forkers.get(template)
        if forker is not None and forker.failure is None:
            return forker
        if self._stopped:
            raise LaunchError("the launcher was stopped")
        if forker is not None and not self._intensity.allow():
            raise LaunchError(
                f"the {template} zygote was restarted {self._intensity.most} times within {self._intensity.seconds:g} s"
                f" and is left alone for now; the last time {forker.failure}"
            )
        try:
            if self._shim is None:
                self._shim = ShimClient(self._run_id, self._log, self._shim_ended, self.environment)
            forker = ZygoteClient(
                template,
                self._shim,
                self._children,
                entry=self._entry,
                boot_timeout=self._boot_timeout,
                log=self._log,
            )
        except OSError as error:
            raise LaunchError(f"the processes that workers are forked from cannot be started: {error}") from error
        self._forkers[template] = forker
        return forker

    def _shim_ended(self, reason: str) -> None:
        self._shim = None
        for forker in self._forkers.values():
            forker.fail(reason)

    def _sweep(self) -> None:
        if self._shim is not None:
            self._shim.sweep()
