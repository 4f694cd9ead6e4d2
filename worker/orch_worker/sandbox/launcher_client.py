"""The agent's end of a launcher: starts one, and commands by it."""

from __future__ import annotations

import errno
import os
import select
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Final

from .launcher import AllowedFiles, Cover, receive, send

if TYPE_CHECKING:
    from orch_protocol.policy.sandbox import Level

__all__ = ["CommandLauncher", "CoveredProcess", "unavailable_reason"]

BOOT: Final = (
    "import sys; sys.path.insert(0, sys.argv[1]); from orch_worker.sandbox.launcher import main; main(sys.argv[2])"
)
PACKAGES: Final = os.fspath(Path(__file__).resolve().parents[2])
START_SECONDS: Final = 20.0
"""A launcher that takes longer to answer is ended, and nothing was run."""
END_SECONDS: Final = 5.0


class CoveredProcess:
    """A command that a launcher started: what `subprocess.Popen` offers of its child."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self.returncode: int | None = None
        self._lock = threading.Lock()

    def wait(self, timeout: float | None = None) -> int:
        """Wait until it has ended and return its exit code, or minus the signal. Raises subprocess.TimeoutExpired."""
        with self._lock:
            if self.returncode is None:
                self.returncode = self._reaped(timeout)
            return self.returncode

    def _reaped(self, timeout: float | None) -> int:
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
            return 0  # another wait reaped it, as subprocess assumes too


class CommandLauncher:
    """A launcher that hides `covers` from the commands it starts at `level`, which reach `files` (L2).

    `staging` is an existing folder. Raises OSError when the covers cannot be had; then no process is left.
    """

    def __init__(
        self, covers: Sequence[Cover], staging: Path, level: Level = "L0", files: AllowedFiles | None = None
    ) -> None:
        self._lock = threading.Lock()
        self._line, theirs = socket.socketpair()
        self._line.settimeout(START_SECONDS)
        try:
            with theirs:
                argv = [sys.executable, "-I", "-S", "-c", BOOT, PACKAGES, str(theirs.fileno())]
                self._process = subprocess.Popen(
                    argv, stdin=subprocess.DEVNULL, pass_fds=(theirs.fileno(),), start_new_session=True, cwd="/"
                )
            try:
                asked = [tuple(cover) for cover in covers], os.fspath(staging), level, files and tuple(files)
                send(self._line, asked)
                received = receive(self._line)
            except OSError:
                received = None
            if received is None or received[0]:
                self._process.kill()
                self._process.wait()
                raise OSError(errno.EPERM, received[0] if received else "the launcher process ended")
        except BaseException:
            self._line.close()
            raise

    def start(self, argv: Sequence[str], cwd: Path, env: Mapping[str, str], output: int) -> CoveredProcess:
        """Start `argv` in a session of its own, its output going to `output`. Raises OSError, ValueError."""
        if any("\0" in text for text in (*argv, *env, *env.values())):
            raise ValueError("embedded null byte")
        with self._lock:
            try:
                send(self._line, (list(map(os.fspath, argv)), os.fspath(cwd), dict(env)), (output,))
                received = receive(self._line)
            except OSError:  # it has ended, or a command has stopped it
                received = None
            if received is None:
                self._process.kill()
                raise OSError(
                    errno.EPIPE, "the process that hides denied paths ended meanwhile; the command may have run"
                )
        pid, number, text = received[0]
        if number:
            raise OSError(number, text)
        return CoveredProcess(pid)

    @property
    def pid(self) -> int:
        """The id of the launcher process."""
        return self._process.pid

    @property
    def alive(self) -> bool:
        """Whether it can start commands."""
        return self._process.poll() is None

    def close(self) -> None:
        """End it; commands that it started go on."""
        self._line.close()
        try:
            self._process.wait(END_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()


@cache
def unavailable_reason() -> str:
    """Return why paths cannot be covered by mounts here, "" where they can. Tried once a process."""
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
