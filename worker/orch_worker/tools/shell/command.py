"""A command in a session of its own: it reads nothing, all it writes is taken, and no process of it is left."""

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

__all__ = ["RunningCommand", "Start", "StartedProcess", "end_first", "ended_by", "start_process"]

CHUNK: Final = 1 << 16
POLITE_SECONDS: Final = 1.0
SWEEP_SECONDS: Final = 2.0
LAST_WORDS_SECONDS: Final = 0.2
PAUSE: Final = 0.005
FIRST_TO_GO: Final = b"1000"


class StartedProcess(Protocol):
    """A started command: what is used of `subprocess.Popen`."""

    pid: int
    returncode: int | None

    def wait(self, timeout: float | None = None) -> int:
        """Wait until it has ended and return its exit code. Raises subprocess.TimeoutExpired."""


Start = Callable[[Sequence[str], Path, Mapping[str, str], int], StartedProcess]
"""Starts a program in a folder, with variables, its output going to a descriptor. Raises OSError, ToolError."""


def start_process(
    argv: Sequence[str], cwd: Path, env: Mapping[str, str], output: int, inherited: Sequence[int] = ()
) -> subprocess.Popen[bytes]:
    """Start `argv` in a session of its own, without input. When memory runs out, it goes before anything of ours."""
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
    end_first(process.pid)
    return process


def end_first(pid: int) -> None:
    """Let the kernel end the process `pid` before others when memory runs out."""
    try:
        score = os.open(f"/proc/{pid}/oom_score_adj", os.O_WRONLY | os.O_CLOEXEC)
        try:
            os.write(score, FIRST_TO_GO)
        finally:
            os.close(score)
    except OSError:
        pass  # not Linux, or it may not be said, or it has ended already


def ended_by(code: int | None) -> str:
    """Return what a command ended with by its `code`: an exit status, or the signal."""
    if code is not None and code < 0:
        try:
            return f"signal {signal.Signals(-code).name}"
        except ValueError:
            return f"signal {-code}"
    return f"exit status {code}"


class RunningCommand:
    """`argv` at work, as `start` starts it. Each piece of output goes to `sink`; past `flood` bytes of it the command
    is killed.

    Raises ToolError when it cannot be started. `code` is the exit code, or minus the signal, once it has ended.
    """

    def __init__(
        self,
        argv: Sequence[str],
        *,
        cwd: Path,
        env: Mapping[str, str],
        sink: Callable[[bytes], None],
        flood: int | None = None,
        start: Start = start_process,
    ) -> None:
        self.code: int | None = None
        self.on_end: Callable[[], None] = lambda: None
        """Called once it has ended."""
        self.strays = 0
        """How many processes it left behind; they were killed."""
        self.flooded = False
        self._sink, self._flood, self._written = sink, flood, 0
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
        self._kin = ProcessDescendants(self._process.pid, mark)
        self._silent: asyncio.Future[None] = self._loop.create_future()
        os.set_blocking(self._pipe, False)
        self._loop.add_reader(self._pipe, self._read)
        self._exited = self._watch()
        self._life = self._loop.create_task(self._live())

    async def wait(self, seconds: float) -> bool:
        """Wait until it has ended, at most `seconds`; say whether it has. What it leaves behind is killed with it."""
        return bool((await asyncio.wait({self._life}, timeout=seconds))[0])

    async def end(self) -> None:
        """Ask it to end, and kill it if it has not within a second."""
        self._kin.signal(signal.SIGTERM)
        if not await self.wait(POLITE_SECONDS):
            self.kill()
            await self.wait(2 * SWEEP_SECONDS)

    def kill(self) -> None:
        """Kill every process of it, now. Nothing happens when it has ended."""
        if self.code is None:
            self._kin.strike()

    def close(self) -> None:
        """Kill every process of it and wait until they are gone, at most 2 s."""
        if self.code is None:
            self._life.cancel()
            self._exited.cancel()
            self._bury()

    def _watch(self) -> asyncio.Future[None]:
        """Return a future that is done when the leader has ended, not yet reaped: its pid is still its own."""
        exited: asyncio.Future[None] = self._loop.create_future()

        def on_exit() -> None:
            if not exited.done():
                exited.set_result(None)

        def wait() -> None:
            self._process.wait()
            self._kin.reaped = True
            try:
                self._loop.call_soon_threadsafe(on_exit)
            except RuntimeError:
                pass  # the loop is closed; nobody waits any more

        try:
            pidfd = os.pidfd_open(self._process.pid)
        except (AttributeError, OSError):  # not Linux
            threading.Thread(target=wait, name="command", daemon=True).start()
        else:
            self._loop.add_reader(pidfd, on_exit)

            def let_go(_: object) -> None:
                self._loop.remove_reader(pidfd)
                os.close(pidfd)

            exited.add_done_callback(let_go)
        return exited

    async def _live(self) -> None:
        try:
            await self._exited
            # Who still holds the pipe may have something to say; not for long.
            await asyncio.wait({self._silent}, timeout=LAST_WORDS_SECONDS)
            deadline = time.monotonic() + SWEEP_SECONDS
            while self._kin.strike():
                if time.monotonic() > deadline:
                    break
                await asyncio.sleep(PAUSE)
            self.strays = len(self._kin.killed)
            await asyncio.wait({self._silent}, timeout=LAST_WORDS_SECONDS)
        finally:
            self._exited.cancel()
            self._bury()

    def _bury(self) -> None:
        """Kill and reap what there is of it, which is nothing but the leader unless it is ended in the middle."""
        if self.code is not None:
            return
        deadline = time.monotonic() + SWEEP_SECONDS
        if not self._exited.done() or self._exited.cancelled():
            while self._kin.strike() and time.monotonic() < deadline:
                time.sleep(PAUSE)
        try:
            self.code = self._process.wait(timeout=max(0.0, deadline - time.monotonic()))
        except subprocess.TimeoutExpired:
            self._process.returncode = self.code = -signal.SIGKILL  # it cannot die, so nobody can wait for it
        self._kin.reaped = True
        self._kin.bury(deadline)
        self._hang_up()
        self.on_end()

    def _read(self) -> None:
        try:
            data = os.read(self._pipe, CHUNK)
        except BlockingIOError:
            return
        self._written += len(data)
        if not data:
            self._hang_up()
        elif self._flood is not None and self._written > self._flood:
            if not self.flooded:
                self.flooded = True
                self._kin.strike()
        else:
            self._sink(data)

    def _hang_up(self) -> None:
        if not self._silent.done():
            self._loop.remove_reader(self._pipe)
            os.close(self._pipe)
            self._silent.set_result(None)
