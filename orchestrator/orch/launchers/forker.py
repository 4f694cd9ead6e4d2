"""The root's end of one zygote: asks it for workers, hears of their ends."""

from __future__ import annotations

import asyncio
import os
import socket
from pathlib import Path
from typing import Final

from orch_protocol.errors import LaunchError
from orch_protocol.spec import Template
from orch_protocol.wire import DECODE_ERRORS
from orch_protocol.zygote import Booted, BootFailed, Exited, Fork, Forked, ForkFailed, decode_report, encode
from orch_worker.kernel import bury, exit_status, kill

from .base import LaunchRequest
from .child import Child, Children, birth_pipe
from .descriptors import held, hold, release
from .environment import command
from .logs import tail
from .shim import Shim

__all__ = ["Forker"]

IN_FLIGHT: Final = 100
"""Forks asked for and not answered. Its socket takes 160 of these packets; a stopped zygote must not make us wait."""
SEND_BUFFER: Final = 1 << 20
PACKET_BYTES: Final = 1 << 16


class Forker:
    """A zygote of `template`, booting from the moment this exists. `failure` says why it is gone, once it is.

    Forks can be asked for at once; they wait in its socket until it is warm. When it ends, so do all its workers.
    """

    def __init__(
        self, template: Template, shim: Shim, children: Children, *, entry: str, boot_timeout: float, log: Path
    ) -> None:
        self._template = template
        self.failure: str | None = None
        self._loop = asyncio.get_running_loop()
        self._children = children
        self._log = log
        self._log_start = log.stat().st_size if log.exists() else 0
        self._slots = asyncio.Semaphore(IN_FLIGHT)
        self._req = 0
        self._waiting: dict[int, tuple[asyncio.Future[Child], int, LaunchRequest]] = {}
        self._alive: dict[int, Child] = {}
        self._pidfd = -1
        self._graves: list[int] = []
        self._control, theirs = map(hold, socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET))
        self._control.setblocking(False)
        self._control.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, SEND_BUFFER)
        lifeline, self._lifeline = map(hold, os.pipe())
        root = hold(os.pidfd_open(os.getpid()))
        shim.start(
            command("zygote", template, entry, str(log.parent)), [theirs.fileno(), lifeline, root], self._started
        )
        for passed in (theirs, lifeline, root):
            release(passed)
        self._loop.add_reader(self._control, self._read)
        self._booting = self._loop.call_later(
            boot_timeout, self.fail, f"the {template} zygote was not ready within {boot_timeout:g} s"
        )

    async def fork(self, request: LaunchRequest) -> Child:
        """Return a new worker. Raises LaunchError. When cancelled, the worker ends as soon as it exists."""
        async with self._slots:
            if self.failure is not None:
                raise LaunchError(self.failure)
            reader, lifeline = birth_pipe(request.birth)
            self._req += 1
            req = self._req
            future: asyncio.Future[Child] = self._loop.create_future()
            fork = Fork(
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
            self._pidfd = hold(pidfd)
            self._loop.add_reader(pidfd, self._read_the_last)

    def _read(self) -> None:
        while held(self._control):
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
            case Forked(req, pid) if req in self._waiting:
                future, lifeline, request = self._waiting.pop(req)
                if not descriptors:
                    self._refuse(future, lifeline, "this process has no descriptor left (see `ulimit -n`)")
                    return
                child = self._alive[req] = Child(pid, descriptors[0], lifeline, request.log)
                self._children.add(child)
                if future.done():
                    child.kill()
                else:
                    future.set_result(child)
            case Forked():
                for descriptor in descriptors:
                    os.close(descriptor)
            case Exited(req, code) if req in self._alive:
                self._alive.pop(req).report(code)
            case ForkFailed(req, text) if req in self._waiting:
                future, lifeline, _ = self._waiting.pop(req)
                self._refuse(future, lifeline, f"no process for the worker: {text}")
            case Booted():
                self._booting.cancel()
            case BootFailed(text):
                self.fail(f"the {self._template} zygote could not load its template:\n{text}")

    def bury(self) -> None:
        """See to it that the zygote, which has ended, and its workers are no zombies; again, it does nothing.

        Their parents do that. Where those are gone, they have fallen to this process, if it is a container's first.
        """
        if self._pidfd >= 0:
            self._loop.remove_reader(self._pidfd)
        for pidfd in (*self._graves, self._pidfd):
            if pidfd >= 0:
                bury(pidfd)
                release(pidfd)
        self._graves, self._pidfd = [], -1

    def _refuse(self, future: asyncio.Future[Child], lifeline: int, reason: str) -> None:
        release(lifeline)
        if not future.done():
            future.set_exception(LaunchError(reason))

    def _read_the_last(self) -> None:
        self._read()
        code = exit_status(self._pidfd)
        said = tail(self._log, self._log_start)
        self.fail(
            f"the {self._template} zygote ended"
            + (f" with {code}" if code is not None else "")
            + (f"; its log ends:\n{said}" if said else "")
        )
