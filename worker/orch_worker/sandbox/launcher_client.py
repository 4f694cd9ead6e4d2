"""The agent's side of a launcher, which starts the launcher process and sends commands to this process."""

from __future__ import annotations

import errno
import os
import select
import signal
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

from ..system import linux
from .launcher import AllowedFiles, Cover, main, receive, send

if TYPE_CHECKING:
    from orch_protocol.policy.sandbox import Level

__all__ = ["CommandLauncher", "CoveredProcess", "LauncherProcess", "fork_launcher", "unavailable_reason"]

BOOT_CODE: Final = (
    "import sys; sys.path.insert(0, sys.argv[1]); from orch_worker.sandbox.launcher import main; main(sys.argv[2])"
)
PACKAGES_FOLDER: Final = os.fspath(Path(__file__).resolve().parents[2])
FIRST_DESCRIPTOR: Final = 3
START_SECONDS: Final = 20.0
"""Time limit for an answer of the launcher. After this time, the launcher is killed, and the command has not run."""
END_SECONDS: Final = 5.0


class CoveredProcess:
    """A child that this process did not start with `subprocess`, with an interface like `subprocess.Popen`."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self.returncode: int | None = None
        self._lock = threading.Lock()

    def wait(self, timeout: float | None = None) -> int:
        """Wait for the end of the process.

        Return the exit code, or the negative number of the signal that ended the process.

        Raise subprocess.TimeoutExpired after `timeout` seconds.
        """
        with self._lock:
            if self.returncode is None:
                self.returncode = self._wait_for_child(timeout)
            return self.returncode

    def poll(self) -> int | None:
        """Return the exit code if the process has ended, otherwise None."""
        try:
            return self.wait(0)
        except subprocess.TimeoutExpired:
            return None

    def kill(self) -> None:
        """Kill the process, unless it has been reaped."""
        with self._lock:
            if self.returncode is None:
                os.kill(self.pid, signal.SIGKILL)

    def _wait_for_child(self, timeout: float | None) -> int:
        try:
            if timeout is not None:
                pidfd = os.pidfd_open(self.pid)
                try:
                    poller = select.poll()
                    poller.register(pidfd, select.POLLIN)
                    if not poller.poll(1000 * max(0.0, timeout)):
                        raise subprocess.TimeoutExpired(str(self.pid), timeout)
                finally:
                    os.close(pidfd)
            return os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])
        except (ChildProcessError, ProcessLookupError):
            return 0  # The child was reaped elsewhere. The module subprocess also assumes 0 in this case.


class LauncherProcess(NamedTuple):
    """A process that waits for the first message of `launcher.main`."""

    connection: socket.socket
    process: CoveredProcess | subprocess.Popen[bytes]


def fork_launcher() -> LauncherProcess:
    """Fork a launcher, which is faster than a new interpreter. This process must have only one thread.

    Raise OSError if the fork fails.
    """
    connection, child_end = socket.socketpair()
    try:
        pid = os.fork()
    except OSError:
        connection.close()
        child_end.close()
        raise
    if pid == 0:
        try:
            os.setsid()
            os.chdir("/")
            os.dup2(child_end.detach(), FIRST_DESCRIPTOR)
            linux.close_from(FIRST_DESCRIPTOR + 1)
            main(str(FIRST_DESCRIPTOR))
        finally:
            os._exit(0)
    child_end.close()
    return LauncherProcess(connection, CoveredProcess(pid))


def _start_launcher() -> LauncherProcess:
    connection, child_end = socket.socketpair()
    try:
        with child_end:
            argv = [sys.executable, "-I", "-S", "-c", BOOT_CODE, PACKAGES_FOLDER, str(child_end.fileno())]
            return LauncherProcess(
                connection,
                subprocess.Popen(
                    argv, stdin=subprocess.DEVNULL, pass_fds=(child_end.fileno(),), start_new_session=True, cwd="/"
                ),
            )
    except BaseException:
        connection.close()
        raise


class CommandLauncher:
    """A launcher that hides `covers` from the commands that it starts at `level`.

    At L2, commands can access only `files`.

    `staging` is an existing folder. `process` is a process for the launcher, or None to start one. If the paths cannot
    be hidden, the constructor ends the launcher process and raises OSError.
    """

    def __init__(
        self,
        covers: Sequence[Cover],
        staging: Path,
        level: Level = "L0",
        files: AllowedFiles | None = None,
        process: LauncherProcess | None = None,
    ) -> None:
        self._lock = threading.Lock()
        self._connection, self._process = process or _start_launcher()
        self._connection.settimeout(START_SECONDS)
        try:
            try:
                request = [tuple(cover) for cover in covers], os.fspath(staging), level, files and tuple(files)
                send(self._connection, request)
                received = receive(self._connection)
            except OSError:
                received = None
            if received is None or received[0]:
                self._process.kill()
                self._process.wait()
                raise OSError(errno.EPERM, received[0] if received else "the launcher process ended")
        except BaseException:
            self._connection.close()
            raise

    def start(self, argv: Sequence[str], cwd: Path, env: Mapping[str, str], output: int) -> CoveredProcess:
        """Start `argv` in a new session with its output redirected to `output`.

        Raise OSError or ValueError if starting fails.
        """
        if any("\0" in text for text in (*argv, *env, *env.values())):
            raise ValueError("embedded null byte")
        with self._lock:
            try:
                send(self._connection, (list(map(os.fspath, argv)), os.fspath(cwd), dict(env)), (output,))
                received = receive(self._connection)
            except OSError:  # The launcher has ended or was stopped.
                received = None
            if received is None:
                self._process.kill()
                raise OSError(
                    errno.EPIPE, "the process that hides denied paths ended during the call; the command may have run"
                )
        pid, number, text = received[0]
        if number:
            raise OSError(number, text)
        return CoveredProcess(pid)

    @property
    def pid(self) -> int:
        """The pid of the launcher process."""
        return self._process.pid

    @property
    def alive(self) -> bool:
        """Whether the launcher can start commands."""
        return self._process.poll() is None

    def close(self) -> None:
        """End the launcher. The commands that it started continue to run."""
        self._connection.close()
        try:
            self._process.wait(END_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()


@cache
def unavailable_reason() -> str:
    """Return why mounts cannot hide paths on this machine, or "" if mounts can hide paths.

    The test runs once per process.
    """
    if not sys.platform.startswith("linux"):
        return f"no mount namespaces on {sys.platform}"
    try:
        with tempfile.TemporaryDirectory(prefix="orch-trial-") as folder:
            secret, staging = Path(folder, "secret"), Path(folder, "staging")
            staging.mkdir()
            secret.write_text("secret")
            CommandLauncher([Cover(os.fspath(secret))], staging).close()
    except OSError as error:
        return f"no user and mount namespaces here ({error.strerror or error})"
    return ""
