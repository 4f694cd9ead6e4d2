"""The CLI's end of the control socket: a request out, its answer back, a daemon started when none is there."""

from __future__ import annotations

import json
import os
import select
import socket
import sys
import time
from collections.abc import Callable

from ..config import paths
from .failure import CommandError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from typing import Any

    Starter = Callable[[Mapping[str, str], str, float], bool]
    OnEvent = Callable[[dict[str, Any]], None]
    OnSilence = Callable[[], None]

__all__ = ["ENDED", "PROTOCOL", "Connection", "await_end", "daemon_status", "replace_invalid_utf8", "request"]

PROTOCOL = 1
"""`orch_protocol.wire.frames.VERSION`, which importing would cost more than everything else here."""
LEAVING = "DaemonLeaving"
NOT_RUNNING = "DaemonNotRunning"
GONE = "DaemonGone"
SILENT = "DaemonSilent"
ENDED = (GONE, SILENT)
"""Kinds of failure after which no connection to that daemon is of any use."""
MAX_LINE = 64 << 20
PATIENCE = 4.5
"""Seconds of silence after which the daemon is asked whether it lives, and after which it does not."""
TICK = 1.0
"""Seconds of silence after which a waiting caller may do something."""
START_SECONDS = 20.0
STOP_SECONDS = 20.0


def request(number: int, method: str, params: dict[str, Any]) -> bytes:
    """Return the line that asks for `method`: what of `params` is no UTF-8 is made so: nothing else is understood."""
    asked = {"id": number, "method": method, "params": params, "version": PROTOCOL}
    line = json.dumps(asked)
    if "\\ud" in line:  # a character that takes two, or half of such a one
        line = json.dumps(replace_invalid_utf8(asked))
    return line.encode() + b"\n"


def _start_daemon(env: Mapping[str, str], log: str, seconds: float) -> bool:
    from .start import start_daemon  # which imports as much as a daemon does

    return start_daemon(env, log, seconds)


class Connection:
    """Asks the daemon of `env`'s ORCH_HOME. `start` is called when none answers; with None that is a Failure."""

    def __init__(self, env: Mapping[str, str] | None = None, *, start: Starter | None = _start_daemon) -> None:
        self._env = dict(os.environ if env is None else env)
        self._start = start
        self._socket: socket.socket | None = None
        self._buffer = b""
        self._last = 0

    def call(
        self,
        method: str,
        params: dict[str, Any] | None = None,
        *,
        on_event: OnEvent | None = None,
        on_silence: OnSilence | None = None,
    ) -> Any:
        """Return the result of `method`, however long it takes while the daemon lives. Raises Failure.

        Meanwhile `on_event` is called with each event of the request, `on_silence` after each second without a word.
        """
        deadline, replaced = None, self._start is None
        while True:
            answer = self._exchange(method, params or {}, on_event, on_silence)
            error = answer.get("error")
            if error is None:
                return answer.get("result")
            if error["type"] == LEAVING:
                if deadline is None:
                    deadline = time.monotonic() + START_SECONDS
                elif time.monotonic() > deadline:
                    raise self._untaken()
                self.close()
            elif error["type"] == "VersionMismatchError" and not replaced:
                self._replace(error["message"])
                replaced = True  # one that is started here and speaks otherwise would be started again and again
            else:
                raise CommandError(error["type"], error["message"], int(error["exit_code"]), error.get("outcome", ""))

    def close(self) -> None:
        """Hang up. Whatever was asked and not waited for goes on."""
        if self._socket is not None:
            self._socket.close()
        self._socket, self._buffer = None, b""

    def sibling(self) -> Connection:
        """Return another connection to the same daemon, which starts none."""
        return Connection(self._env, start=None)

    def dial(self) -> bool:
        """Connect if somebody listens."""
        if self._socket is None:
            self._socket = self._try()
        return self._socket is not None

    @property
    def log(self) -> str:
        """Where the daemon writes what happens to it."""
        return os.path.join(paths.home_text(self._env), "daemon", "log")

    def _try(self) -> socket.socket | None:
        path = paths.control_socket(self._env)
        connected = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        connected.settimeout(PATIENCE)
        try:
            connected.connect(path)
        except (FileNotFoundError, NotADirectoryError, ConnectionRefusedError, ConnectionResetError):
            connected.close()
            return None
        except OSError as error:  # such as a backlog full of others, when the daemon hangs
            connected.close()
            raise CommandError(
                "OSError", f"cannot connect to {path}: {error.strerror or error}; see {self.log}"
            ) from error
        return connected

    def _connect(self) -> socket.socket:
        deadline = time.monotonic() + START_SECONDS
        while not self.dial():
            if self._start is None:
                raise CommandError(NOT_RUNNING, "no daemon is running: orch daemon start", 3)
            if time.monotonic() > deadline:
                raise self._untaken()
            if not self._start(self._env, self.log, START_SECONDS):
                time.sleep(0.02)  # another process is just starting, or ending, one
        assert self._socket is not None
        return self._socket

    def _untaken(self) -> CommandError:
        return CommandError(NOT_RUNNING, f"no daemon took this request in {START_SECONDS:g} s: see {self.log}")

    def _exchange(
        self,
        method: str,
        params: dict[str, Any],
        on_event: OnEvent | None = None,
        on_silence: OnSilence | None = None,
    ) -> dict[str, Any]:
        self._last += 1
        line = request(self._last, method, params)
        if len(line) > MAX_LINE:
            raise CommandError(
                "MessageTooLargeError",
                f"the request has {len(line)} bytes, the most is {MAX_LINE}: put the text into a file and name that",
                2,
            )
        connected = self._connect()
        self._send(connected, line[:-2] + self._credentials() + b"}\n")
        while True:
            answer: dict[str, Any] = json.loads(self._line(connected, on_silence))
            # 0: the daemon could not read the request, or takes none any more.
            if answer["id"] not in (self._last, 0):
                continue
            if (event := answer.get("event")) is None:
                return answer
            if "notice" in event:
                print(f"orch: {event['notice']}", file=sys.stderr)
            elif on_event is not None:
                on_event(event)

    def _credentials(self) -> bytes:
        """Return the end of a request: the variables that the daemon wants, as far as they are set."""
        found = {name: self._env[name] for name in paths.variables(self._env) if self._env.get(name)}
        text = json.dumps(found, ensure_ascii=False).encode("utf-8", "replace")
        return b', "credentials": ' + text if found else b""

    def _send(self, connected: socket.socket, line: bytes) -> None:
        try:
            connected.sendall(line)
        except (BrokenPipeError, ConnectionResetError):
            pass  # what it said before it went is still there to read
        except TimeoutError:
            raise self._silent(connected) from None

    def _line(self, connected: socket.socket, on_silence: OnSilence | None) -> bytes:
        """Return the next line of the daemon. Two silences in a row, the second after asking for a word, mean death."""
        asked = False
        chunks = [self._buffer]
        while b"\n" not in chunks[-1]:
            try:
                if on_silence is not None:
                    self._until_readable(connected, on_silence)
                chunk = connected.recv(1 << 18)
            except TimeoutError:
                if asked:
                    raise self._silent(connected) from None
                asked = True
                self._send(connected, b'{"id":-1,"method":"ping","version":%d}\n' % PROTOCOL)
                continue
            except ConnectionResetError:
                chunk = b""
            if not chunk:
                self.close()
                raise CommandError(
                    GONE,
                    "the daemon ended before it answered; what agents finished is kept: orch list, then orch collect "
                    f"REF. Why it ended: {self.log}",
                )
            asked = False
            chunks.append(chunk)
        line, _, self._buffer = b"".join(chunks).partition(b"\n")
        return line

    def _until_readable(self, connected: socket.socket, on_silence: OnSilence) -> None:
        """Return when there is something to read. Raises TimeoutError after PATIENCE seconds."""
        poll = select.poll()
        poll.register(connected, select.POLLIN)
        deadline = time.monotonic() + PATIENCE
        while not poll.poll(TICK * 1000):
            if time.monotonic() > deadline:
                raise TimeoutError
            on_silence()

    def _silent(self, connected: socket.socket) -> CommandError:
        # Who listened is told by the kernel: a file may be gone, or name another by now.
        from .peer_credentials import peer_of

        pid, _ = peer_of(connected)
        self.close()
        return CommandError(
            SILENT,
            f"the daemon, process {pid}, says nothing for {2 * PATIENCE:g} s: it hangs or was stopped; see "
            f"{self.log}. To end it and its agents' processes: kill -9 {pid}; the next command starts another",
        )

    def _replace(self, mismatch: str) -> None:
        """Stop the daemon, which speaks another version, unless it is at work."""
        answer = self._exchange("daemon_stop", {"if_idle": True})
        if error := answer.get("error"):
            raise CommandError("VersionMismatchError", f"{mismatch}. It cannot be replaced now: {error['message']}", 2)
        self.close()
        await_end(answer["result"]["pid"])
        print("orch: the daemon spoke another version; starting one that matches", file=sys.stderr)


def daemon_status() -> dict[str, Any] | None:
    """Return what the daemon says of itself, None when none is running. Starts none. Raises Failure."""
    connection = Connection(start=None)
    try:
        status: dict[str, Any] = connection.call("daemon_status")
    except CommandError as failure:
        if failure.kind not in (NOT_RUNNING, GONE):
            raise
        return None
    finally:
        connection.close()
    return status


def await_end(pid: int) -> None:
    """Wait until the process `pid` is gone. Raises Failure after STOP_SECONDS."""
    late = CommandError(SILENT, f"the daemon is still there after {STOP_SECONDS:g} s: kill -9 {pid}")
    if not hasattr(os, "pidfd_open"):
        deadline = time.monotonic() + STOP_SECONDS
        while _is_there(pid):
            if time.monotonic() > deadline:
                raise late
            time.sleep(TICK / 10)
        return
    try:
        descriptor = os.pidfd_open(pid)
    except ProcessLookupError:
        return
    try:
        poll = select.poll()
        poll.register(descriptor, select.POLLIN)
        if not poll.poll(STOP_SECONDS * 1000):
            raise late
    finally:
        os.close(descriptor)


def _is_there(pid: int) -> bool:
    try:
        os.waitpid(pid, os.WNOHANG)  # where it was this program that started it
    except ChildProcessError:
        pass
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def replace_invalid_utf8(value: Any) -> Any:
    """Return `value` with text from the command line that is not UTF-8 made so; JSON may hold half a character too."""
    if isinstance(value, str):
        if value.isascii():
            return value
        try:
            return value.encode("utf-8", "surrogateescape").decode("utf-8", "replace")
        except UnicodeEncodeError:
            from orch_protocol.core.text import scrub

            return scrub(value)
    if isinstance(value, dict):
        return {replace_invalid_utf8(key): replace_invalid_utf8(item) for key, item in value.items()}
    if isinstance(value, list):
        return [replace_invalid_utf8(item) for item in value]
    return value
