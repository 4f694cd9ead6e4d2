"""Runs a command in a new session without input. All output is captured, and no process is left behind."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Final, Protocol

from ..api.base import ToolError
from .process_group import MARK, ProcessDescendants

__all__ = ["RunningCommand", "Start", "StartedProcess", "exit_text", "prefer_oom_kill", "start_process"]

CHUNK: Final = 1 << 16
TERMINATE_SECONDS: Final = 1.0
KILL_SECONDS: Final = 2.0
DRAIN_SECONDS: Final = 0.2
PAUSE: Final = 0.005
MAX_OOM_SCORE: Final = b"1000"


class StartedProcess(Protocol):
    """A started command, with the part of the interface of `subprocess.Popen` that orch uses."""

    pid: int
    returncode: int | None

    def wait(self, timeout: float | None = None) -> int:
        """Wait for the end of the command and return the exit code.

        Raise subprocess.TimeoutExpired after `timeout` seconds.
        """


Start = Callable[[Sequence[str], Path, Mapping[str, str], int], StartedProcess]
"""A function that starts a program. Arguments: argv, folder, environment variables, and descriptor for the output.

The function raises OSError or ToolError if starting fails.
"""


def start_process(
    argv: Sequence[str], cwd: Path, env: Mapping[str, str], output: int, inherited: Sequence[int] = ()
) -> subprocess.Popen[bytes]:
    """Start `argv` in a new session without input.

    If memory runs out, the kernel kills this process before the processes of orch.
    """
    process = subprocess.Popen(
        argv,
        cwd=cwd,
        env=env,
        stdin=subprocess.DEVNULL,
        stdout=output,
        stderr=output,
        pass_fds=inherited,
        start_new_session=True,
    )
    prefer_oom_kill(process.pid)
    return process


def prefer_oom_kill(pid: int) -> None:
    """If memory runs out, make the kernel kill the process `pid` before other processes."""
    try:
        descriptor = os.open(f"/proc/{pid}/oom_score_adj", os.O_WRONLY | os.O_CLOEXEC)
        try:
            os.write(descriptor, MAX_OOM_SCORE)
        finally:
            os.close(descriptor)
    except OSError:
        pass  # The system is not Linux, the change is not permitted, or the process has already ended.


def exit_text(code: int | None) -> str:
    """Return a text about the end of a command: the exit status or the signal in `code`."""
    if code is not None and code < 0:
        try:
            return f"signal {signal.Signals(-code).name}"
        except ValueError:
            return f"signal {-code}"
    return f"exit status {code}"


class RunningCommand:
    """A running command, started by `start`. The output of the command goes to `sink`.

    After `max_bytes` bytes of output, the command is killed.

    The constructor raises ToolError if the command cannot be started. After the end of the command, `code` is the exit
    code, or the negative number of the signal.
    """

    def __init__(
        self,
        argv: Sequence[str],
        *,
        cwd: Path,
        env: Mapping[str, str],
        sink: Callable[[bytes], None],
        max_bytes: int | None = None,
        start: Start = start_process,
    ) -> None:
        self.code: int | None = None
        self.on_end: Callable[[], None] = lambda: None
        """Called after the command has ended."""
        self.killed_leftovers = 0
        """Number of processes left behind by the command and then killed."""
        self.exceeded_output = False
        self._sink, self._max_bytes, self._written = sink, max_bytes, 0
        self._loop = asyncio.get_running_loop()
        mark = os.urandom(8).hex()
        self._pipe, writer = os.pipe()
        try:
            self._process = start(argv, cwd, {**env, MARK: mark}, writer)
        except ToolError:
            os.close(self._pipe)
            raise
        except (OSError, ValueError) as error:
            os.close(self._pipe)
            why = error.strerror if isinstance(error, OSError) else error
            raise ToolError(f"{argv[0]} cannot be started in {str(cwd)!r}: {why}.") from error
        finally:
            os.close(writer)
        self._descendants = ProcessDescendants(self._process.pid, mark)
        self._output_closed: asyncio.Future[None] = self._loop.create_future()
        os.set_blocking(self._pipe, False)
        self._loop.add_reader(self._pipe, self._read)
        self._exited = self._watch()
        self._task = self._loop.create_task(self._supervise())

    async def wait(self, seconds: float) -> bool:
        """Wait at most `seconds` for the end of the command. Return whether the command has ended.

        If the command has ended, its remaining processes are killed.
        """
        return bool((await asyncio.wait({self._task}, timeout=seconds))[0])

    async def end(self) -> None:
        """Ask the command to end, and kill it if it has not ended within a second."""
        self._descendants.signal(signal.SIGTERM)
        if not await self.wait(TERMINATE_SECONDS):
            self.kill()
            await self.wait(2 * KILL_SECONDS)

    def kill(self) -> None:
        """Kill all processes of the command now. Do nothing if the command has ended."""
        if self.code is None:
            self._descendants.kill_all()

    def close(self) -> None:
        """Kill all processes of the command, and wait at most 2 s for their end."""
        if self.code is None:
            self._task.cancel()
            self._exited.cancel()
            self._finish()

    def _watch(self) -> asyncio.Future[None]:
        """Return a future that completes when the main process has ended.

        The process is not reaped before the future completes, so its pid is not reused.
        """
        exited: asyncio.Future[None] = self._loop.create_future()

        def on_exit() -> None:
            if not exited.done():
                exited.set_result(None)

        def wait() -> None:
            self._process.wait()
            self._descendants.reaped = True
            try:
                self._loop.call_soon_threadsafe(on_exit)
            except RuntimeError:
                pass  # The loop is closed, so no task waits for the result.

        try:
            pidfd = os.pidfd_open(self._process.pid)
        except (AttributeError, OSError):  # The system is not Linux.
            threading.Thread(target=wait, name="command", daemon=True).start()
        else:
            self._loop.add_reader(pidfd, on_exit)

            def close_pidfd(_: object) -> None:
                self._loop.remove_reader(pidfd)
                os.close(pidfd)

            exited.add_done_callback(close_pidfd)
        return exited

    async def _supervise(self) -> None:
        try:
            await self._exited
            # Processes that still have the pipe open may write more, so wait briefly.
            await asyncio.wait({self._output_closed}, timeout=DRAIN_SECONDS)
            deadline = time.monotonic() + KILL_SECONDS
            while self._descendants.kill_all():
                if time.monotonic() > deadline:
                    break
                await asyncio.sleep(PAUSE)
            self.killed_leftovers = len(self._descendants.killed)
            await asyncio.wait({self._output_closed}, timeout=DRAIN_SECONDS)
        finally:
            self._exited.cancel()
            self._finish()

    def _finish(self) -> None:
        """Kill and reap the remaining processes. Usually only the main process is left."""
        if self.code is not None:
            return
        deadline = time.monotonic() + KILL_SECONDS
        if not self._exited.done() or self._exited.cancelled():
            while self._descendants.kill_all() and time.monotonic() < deadline:
                time.sleep(PAUSE)
        try:
            self.code = self._process.wait(timeout=max(0.0, deadline - time.monotonic()))
        except subprocess.TimeoutExpired:
            # The process hangs in the kernel, so it cannot be reaped.
            self._process.returncode = self.code = -signal.SIGKILL
        self._descendants.reaped = True
        self._descendants.reap(deadline)
        self._close_pipe()
        self.on_end()

    def _read(self) -> None:
        try:
            data = os.read(self._pipe, CHUNK)
        except BlockingIOError:
            return
        self._written += len(data)
        if not data:
            self._close_pipe()
        elif self._max_bytes is not None and self._written > self._max_bytes:
            if not self.exceeded_output:
                self.exceeded_output = True
                self._descendants.kill_all()
        else:
            self._sink(data)

    def _close_pipe(self) -> None:
        if not self._output_closed.done():
            self._loop.remove_reader(self._pipe)
            os.close(self._pipe)
            self._output_closed.set_result(None)
