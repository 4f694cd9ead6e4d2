"""The root's client of the shim.

The shim starts zygotes. When the root is gone, the shim ends all processes below it.
"""

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
from orch_worker.system.memory_limit import with_memory_limit

from .descriptors import is_registered, received_packets, register, release
from .environment import command, worker_environment
from .worker_logs import open_log, read_tail, trim

__all__ = ["OnStarted", "ShimClient"]

PACKET_BYTES: Final = 1 << 16
SWEEP_SECONDS: Final = 0.02

OnStarted = Callable[[int | None, str], None]
"""A function that is called when a process was started or failed to start.

The arguments are the pidfd of the process and "", or None and the error. The function must close the pidfd.
"""


class ShimClient:
    """A running shim. If the shim ends for another reason than `stop`, `on_end` is called once with the reason.

    The output of the shim, and of all processes that the shim starts, goes to `log`. The shim gets the variables named
    in `environment` in addition to the usual variables. This class does not use SIGCHLD, because SIGCHLD belongs to the
    user's program. Raises LaunchError if the shim cannot be started.
    """

    def __init__(self, run_id: str, log: Path, on_end: Callable[[str], None], environment: Sequence[str] = ()) -> None:
        self._loop = asyncio.get_running_loop()
        self._on_end = on_end
        self._starting: deque[OnStarted] = deque()
        self._sweep: asyncio.TimerHandle | None = None
        self._log = log
        trim(log)
        try:
            output = open_log(log)
        except OSError as error:
            raise LaunchError(f"cannot write to {log}: {error.strerror}") from error
        self._log_start = os.fstat(output).st_size
        self._control, shim_socket = map(register, socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET))
        # The shim gets a pidfd of this process, because a pid could be reused.
        root = register(os.pidfd_open(os.getpid()))
        try:
            self._process = subprocess.Popen(
                command("shim", str(shim_socket.fileno()), str(root)),
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                env=worker_environment(run_id, environment),
                pass_fds=(shim_socket.fileno(), root),
                process_group=0,
            )
            self._pidfd = register(os.pidfd_open(self._process.pid))
        except OSError as error:
            release(self._control)
            raise LaunchError(f"the shim process could not be started: {error}") from error
        finally:
            release(shim_socket)
            release(root)
            os.close(output)
        self._control.setblocking(False)
        self._loop.add_reader(self._control, self._read)
        self._loop.add_reader(self._pidfd, self._on_shim_exit)

    def start(self, argv: list[str], descriptors: list[int], on_started: OnStarted) -> None:
        """Start `argv` as a process below the shim.

        The process inherits `descriptors`. Their numbers in the new process are appended to `argv`.
        """
        self._starting.append(on_started)
        self._send(b"\0".join([b"start", *map(os.fsencode, argv)]), descriptors)

    def sweep(self) -> None:
        """Make the shim end the processes that dead workers left behind. The shim ends them shortly after the call."""
        if self._sweep is None:
            self._sweep = self._loop.call_later(SWEEP_SECONDS, self._sweep_now)

    async def stop(self, seconds: float) -> None:
        """Make the shim end all processes below it and then end itself. Kill the shim after `seconds`."""
        if not is_registered(self._pidfd):
            return
        exited: asyncio.Future[None] = self._loop.create_future()

        def end() -> None:
            self._loop.remove_reader(self._pidfd)
            if not exited.done():
                exited.set_result(None)

        self._loop.remove_reader(self._control)
        self._loop.add_reader(self._pidfd, end)
        self._send(b"stop")
        try:
            await asyncio.wait_for(exited, seconds)
        except TimeoutError:
            linux.kill(self._pidfd)
        finally:
            self._close()

    def _send(self, packet: bytes, descriptors: list[int] | None = None) -> None:
        try:
            socket.send_fds(self._control, [packet], descriptors or [])
        except (BrokenPipeError, ConnectionResetError, BlockingIOError):
            pass  # the pidfd reports the end of the shim; requests to a shim that does not read time out

    def _sweep_now(self) -> None:
        self._sweep = None
        if is_registered(self._control):
            self._send(b"sweep")

    def _read(self) -> None:
        for packet, descriptors in received_packets(self._control, PACKET_BYTES):
            verb, *words = packet.split(b"\0")
            if verb == b"started":
                pidfd = descriptors[0] if descriptors else None
                self._starting.popleft()(pidfd, "this process has no descriptor left (see `ulimit -n`)")
            elif verb == b"failed":
                self._starting.popleft()(None, with_memory_limit(words[0].decode(errors="replace")))
            elif verb == b"":
                self._loop.remove_reader(self._control)

    def _on_shim_exit(self) -> None:
        self._read()
        self._close()
        log_end = with_memory_limit(read_tail(self._log, self._log_start))
        reason = f"the shim process ended with {self._process.returncode}" + (
            f"; its log ends:\n{log_end}" if log_end else ""
        )
        for on_started in self._starting:
            on_started(None, reason)
        self._on_end(reason)

    def _close(self) -> None:
        self._process.wait()
        if self._sweep is not None:
            self._sweep.cancel()
        self._loop.remove_reader(self._control)
        self._loop.remove_reader(self._pidfd)
        release(self._control)
        release(self._pidfd)
