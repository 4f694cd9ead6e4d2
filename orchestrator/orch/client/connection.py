"""The CLI's connection to the daemon.

The connection sends requests and receives responses. If no daemon is running, the connection starts a daemon.
"""

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

PROTOCOL = 3
"""A copy of `orch_protocol.wire.frames.VERSION`, because importing that module would be slow."""
LEAVING = "DaemonLeaving"
NOT_RUNNING = "DaemonNotRunning"
GONE = "DaemonGone"
SILENT = "DaemonSilent"
ENDED = (GONE, SILENT)
"""Kinds of failures after which no connection to this daemon can be used."""
MAX_LINE = 64 << 20
SILENCE_SECONDS = 4.5
"""After this number of silent seconds the daemon gets a ping. After another such period the daemon counts as hung."""
TICK_SECONDS = 1.0
"""The number of silent seconds after which `on_silence` is called."""
START_SECONDS = 20.0
STOP_SECONDS = 20.0


def request(number: int, method: str, params: dict[str, Any], run: str = "") -> bytes:
    """Return the line of a request. Invalid UTF-8 in `params` is replaced."""
    message = {"id": number, "method": method, "params": params, "version": PROTOCOL} | ({"run": run} if run else {})
    line = json.dumps(message)
    if "\\ud" in line:  # a surrogate pair or a lone surrogate
        line = json.dumps(replace_invalid_utf8(message))
    return line.encode() + b"\n"


def _start_daemon(env: Mapping[str, str], log: str, seconds: float) -> bool:
    from .start import start_daemon  # imported here because the import is slow: it imports as much as a daemon

    return start_daemon(env, log, seconds)


class Connection:
    """Sends requests to the daemon that serves the ORCH_HOME in `env`.

    If no daemon is running, the function `start` starts a daemon. If `start` is None, the request raises CommandError.
    With `run`, the requests are about the agents of another run, whose files the daemon reads.
    """

    def __init__(
        self, env: Mapping[str, str] | None = None, *, start: Starter | None = _start_daemon, run: str | None = None
    ) -> None:
        self._env = dict(os.environ if env is None else env)
        self._start = start
        self._run = run or ""
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
        """Return the result of `method`. Wait for the result as long as the daemon is alive. Raises CommandError.

        `on_event` is called with each event of the request. `on_silence` is called after each second without data.
        """
        deadline, has_replaced = None, self._start is None
        while True:
            answer = self._exchange(method, params or {}, on_event, on_silence)
            error = answer.get("error")
            if error is None:
                return answer.get("result")
            if error["type"] == LEAVING:
                if deadline is None:
                    deadline = time.monotonic() + START_SECONDS
                elif time.monotonic() > deadline:
                    raise self._no_daemon_error()
                self.close()
            elif error["type"] == "VersionMismatchError" and not has_replaced:
                self._replace(error["message"])
                has_replaced = True  # only once, because the new daemon may have another version too
            else:
                raise CommandError(error["type"], error["message"], int(error["exit_code"]), error.get("outcome", ""))

    def close(self) -> None:
        """Close the connection. Requests in progress continue in the daemon, except requests that only wait."""
        if self._socket is not None:
            self._socket.close()
        self._socket, self._buffer = None, b""

    def __del__(self) -> None:
        """Close the socket: many callers send one request and drop the connection."""
        self.close()

    def sibling(self) -> Connection:
        """Return another connection to the same daemon. The new connection never starts a daemon."""
        return Connection(self._env, start=None, run=self._run)

    def dial(self) -> bool:
        """Connect if a daemon is listening. Return whether the connection exists."""
        if self._socket is None:
            self._socket = self._open_socket()
        return self._socket is not None

    @property
    def log(self) -> str:
        """The daemon's log file."""
        return os.path.join(paths.home_text(self._env), "daemon", "log")

    def _open_socket(self) -> socket.socket | None:
        path = paths.control_socket(self._env)
        connected = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        connected.settimeout(SILENCE_SECONDS)
        try:
            connected.connect(path)
        except (FileNotFoundError, NotADirectoryError, ConnectionRefusedError, ConnectionResetError):
            connected.close()
            return None
        except OSError as error:  # for example a full backlog of a hung daemon
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
                raise self._no_daemon_error()
            if not self._start(self._env, self.log, START_SECONDS):
                time.sleep(0.02)  # another process is starting or stopping a daemon
        assert self._socket is not None
        return self._socket

    def _no_daemon_error(self) -> CommandError:
        return CommandError(NOT_RUNNING, f"no daemon accepted this request within {START_SECONDS:g} s: see {self.log}")

    def _exchange(
        self,
        method: str,
        params: dict[str, Any],
        on_event: OnEvent | None = None,
        on_silence: OnSilence | None = None,
    ) -> dict[str, Any]:
        self._last += 1
        line = request(self._last, method, params, self._run)
        if len(line) > MAX_LINE:
            raise CommandError(
                "MessageTooLargeError",
                f"the request has {len(line)} bytes, but at most {MAX_LINE} are allowed: put the text into a file",
                2,
            )
        connected = self._connect()
        self._send(connected, line[:-2] + self._credentials() + b"}\n")
        while True:
            answer: dict[str, Any] = json.loads(self._read_line(connected, on_silence))
            # An id of 0 means that the daemon could not read the request, or accepts no more requests.
            if answer["id"] not in (self._last, 0):
                continue
            if (event := answer.get("event")) is None:
                return answer
            if "notice" in event:
                print(f"orch: {event['notice']}", file=sys.stderr)
            elif on_event is not None:
                on_event(event)

    def _credentials(self) -> bytes:
        """Return the part of the request line with the environment variables that the daemon needs."""
        values = {name: self._env[name] for name in paths.read_variables(self._env) if self._env.get(name)}
        text = json.dumps(values, ensure_ascii=False).encode("utf-8", "replace")
        return b', "credentials": ' + text if values else b""

    def _send(self, connected: socket.socket, line: bytes) -> None:
        try:
            connected.sendall(line)
        except (BrokenPipeError, ConnectionResetError):
            pass  # the last response of the daemon can still be read
        except TimeoutError:
            raise self._silent_error(connected) from None

    def _read_line(self, connected: socket.socket, on_silence: OnSilence | None) -> bytes:
        """Return the next line from the daemon.

        The daemon counts as hung after two silent periods, with a ping between them.
        """
        pinged = False
        chunks = [self._buffer]
        while b"\n" not in chunks[-1]:
            try:
                if on_silence is not None:
                    self._until_readable(connected, on_silence)
                chunk = connected.recv(1 << 18)
            except TimeoutError:
                if pinged:
                    raise self._silent_error(connected) from None
                pinged = True
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
            pinged = False
            chunks.append(chunk)
        line, _, self._buffer = b"".join(chunks).partition(b"\n")
        return line

    def _until_readable(self, connected: socket.socket, on_silence: OnSilence) -> None:
        """Wait until data can be read. Raises TimeoutError after SILENCE_SECONDS."""
        poll = select.poll()
        poll.register(connected, select.POLLIN)
        deadline = time.monotonic() + SILENCE_SECONDS
        while not poll.poll(TICK_SECONDS * 1000):
            if time.monotonic() > deadline:
                raise TimeoutError
            on_silence()

    def _silent_error(self, connected: socket.socket) -> CommandError:
        # The kernel knows the listening process; a pid file may be missing or outdated.
        from .peer_credentials import peer_of

        pid, _ = peer_of(connected)
        self.close()
        return CommandError(
            SILENT,
            f"the daemon, process {pid}, has not answered for {2 * SILENCE_SECONDS:g} s: it hangs or was stopped; see "
            f"{self.log}. To end it and its agents' processes: kill -9 {pid}; the next command starts a new daemon",
        )

    def _replace(self, mismatch: str) -> None:
        """Stop a daemon that has another protocol version. A daemon with working agents is not stopped."""
        answer = self._exchange("daemon_stop", {"if_idle": True})
        if error := answer.get("error"):
            raise CommandError("VersionMismatchError", f"{mismatch}. It cannot be replaced now: {error['message']}", 2)
        self.close()
        await_end(answer["result"]["pid"])
        print("orch: replacing the daemon, which has another version", file=sys.stderr)


def daemon_status() -> dict[str, Any] | None:
    """Return the daemon's status. Return None if no daemon is running. Never starts a daemon. Raises CommandError."""
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
    """Wait until the process `pid` has ended. Raises CommandError after STOP_SECONDS."""
    timeout_error = CommandError(SILENT, f"the daemon did not stop within {STOP_SECONDS:g} s; to end it: kill -9 {pid}")
    if not hasattr(os, "pidfd_open"):
        deadline = time.monotonic() + STOP_SECONDS
        while _is_alive(pid):
            if time.monotonic() > deadline:
                raise timeout_error
            time.sleep(TICK_SECONDS / 10)
        return
    try:
        descriptor = os.pidfd_open(pid)
    except ProcessLookupError:
        return
    try:
        poll = select.poll()
        poll.register(descriptor, select.POLLIN)
        if not poll.poll(STOP_SECONDS * 1000):
            raise timeout_error
    finally:
        os.close(descriptor)


def _is_alive(pid: int) -> bool:
    try:
        os.waitpid(pid, os.WNOHANG)  # this program may be the parent of the process
    except ChildProcessError:
        pass
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def replace_invalid_utf8(value: Any) -> Any:
    """Return `value` with invalid UTF-8 (from the command line) and lone surrogates replaced."""
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
