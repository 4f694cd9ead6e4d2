"""The root's end of the shim, the process that starts zygotes and ends everything when the root is gone."""

from __future__ import annotations

import asyncio
import os
import socket
import subprocess
from collections import deque
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

from orch_protocol.core.errors import LaunchError
from orch_worker.system import linux

from .descriptors import is_registered, register, release
from .environment import command, worker_environment
from .worker_logs import open_log, read_tail, trim

__all__ = ["ShimClient", "Started"]

PACKET_BYTES: Final = 1 << 16
SWEEP_SECONDS: Final = 0.02

Started = Callable[[int | None, str], None]
"""Called with the pidfd of the started process, which is then the callee's to close, or None and why not."""


class ShimClient:
    """A running shim. `on_end` is called once, with the reason, when it is gone other than by `stop`.

    Its output and that of everything it starts goes to `log`. Nothing here relies on SIGCHLD: that is the program's.
    It gets the variables in `environment` besides the usual ones. Raises LaunchError if it cannot be started.
    """

    def __init__(self, run_id: str, log: Path, on_end: Callable[[str], None], environment: Sequence[str] = ()) -> None:
        self._loop = asyncio.get_running_loop()
        self._on_end = on_end
        self._starting: deque[Started] = deque()
        self._sweep: asyncio.TimerHandle | None = None
        self._log = log
        trim(log)
        try:
            output = open_log(log)
        except OSError as error:
            raise LaunchError(f"cannot write to {log}: {error.strerror}") from error
        self._log_start = os.fstat(output).st_size
        self._control, theirs = map(register, socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET))
        # The pidfd of this very process: no pid that could name another one later.
        root = register(os.pidfd_open(os.getpid()))
        try:
            self._process = subprocess.Popen(
                command("shim", str(theirs.fileno()), str(root)),
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                env=worker_environment(run_id, environment),
                pass_fds=(theirs.fileno(), root),
                process_group=0,
            )
            self._pidfd = register(os.pidfd_open(self._process.pid))
        except OSError as error:
            release(self._control)
            raise LaunchError(f"the shim process could not be started: {error}") from error
        finally:
            release(theirs)
            release(root)
            os.close(output)
        self._control.setblocking(False)
        self._loop.add_reader(self._control, self._read)
        self._loop.add_reader(self._pidfd, self._read_the_last)

    def start(self, argv: list[str], descriptors: list[int], started: Started) -> None:
        """Start `argv` with `descriptors`, whose numbers there are added to it, tied to the shim."""
        self._starting.append(started)
        self._send(b"\0".join([b"start", *map(os.fsencode, argv)]), descriptors)

    def sweep(self) -> None:
        """End, in a moment, what dead workers have left behind."""
        if self._sweep is None:
            self._sweep = self._loop.call_later(SWEEP_SECONDS, self._sweep_now)

    async def stop(self, seconds: float) -> None:
        """End everything below it and then itself; after `seconds` without mercy."""
        if not is_registered(self._pidfd):
            return
        gone: asyncio.Future[None] = self._loop.create_future()

        def end() -> None:
            self._loop.remove_reader(self._pidfd)
            if not gone.done():
                gone.set_result(None)

        self._loop.remove_reader(self._control)
        self._loop.add_reader(self._pidfd, end)
        self._send(b"stop")
        try:
            await asyncio.wait_for(gone, seconds)
        except TimeoutError:
            linux.kill(self._pidfd)
        finally:
            self._close()

    def _send(self, packet: bytes, descriptors: list[int] | None = None) -> None:
        try:
            socket.send_fds(self._control, [packet], descriptors or [])
        except (BrokenPipeError, ConnectionResetError, BlockingIOError):
            pass  # its end, or its being stopped, shows at the pidfd and in what was asked for

    def _sweep_now(self) -> None:
        self._sweep = None
        if is_registered(self._control):
            self._send(b"sweep")

    def _read(self) -> None:
        while is_registered(self._control):
            try:
                packet, descriptors, _, _ = socket.recv_fds(self._control, PACKET_BYTES, 1, socket.MSG_CMSG_CLOEXEC)
            except BlockingIOError:
                return
            except ConnectionResetError:
                packet, descriptors = b"", []
            verb, *words = packet.split(b"\0")
            if verb == b"started":
                pidfd = descriptors[0] if descriptors else None
                self._starting.popleft()(pidfd, "this process has no descriptor left (see `ulimit -n`)")
            elif verb == b"failed":
                self._starting.popleft()(None, words[0].decode(errors="replace"))
            elif verb == b"":
                self._loop.remove_reader(self._control)
                return

    def _read_the_last(self) -> None:
        self._read()
        self._close()
        said = read_tail(self._log, self._log_start)
        reason = f"the shim process ended with {self._process.returncode}" + (
            f"; its log ends:\n{said}" if said else ""
        )
        for started in self._starting:
            started(None, reason)
        self._on_end(reason)

    def _close(self) -> None:
        self._process.wait()
        if self._sweep is not None:
            self._sweep.cancel()
        self._loop.remove_reader(self._control)
        self._loop.remove_reader(self._pidfd)
        release(self._control)
        release(self._pidfd)
