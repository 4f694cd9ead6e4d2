"""Other processes' connections to the proxy of an ORCH_HOME: status, stop, attach, and start."""

from __future__ import annotations

import fcntl
import json
import os
import socket
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Final

from ...client.connection import await_end
from ...client.failure import CommandError
from ...config import paths
from .control import ATTACH, LEAVING, SOCKET, STOP

__all__ = ["Attachment", "attach", "call", "start", "stop"]

ANSWER_SECONDS: Final = 10.0
STOP_SECONDS: Final = 30.0
START_SECONDS: Final = 30.0
POLL_SECONDS: Final = 0.02
TAIL_BYTES: Final = 2000
LOG: Final = "proxy.log"


class Attachment:
    """A connection that keeps a proxy running that was started with `start`. Close it to let the proxy end.

    `url` is the address of the proxy. `base_url` is the address for clients; it contains the token if there is one.
    `status` contains all fields of `orch proxy status --json`.
    """

    def __init__(self, connected: socket.socket, status: dict[str, Any]) -> None:
        self._socket = connected
        self.status = status
        self.url: str = status["url"]
        self.base_url: str = status["base_url"]
        self.pid: int = status["pid"]

    def close(self) -> None:
        """Close the connection. The proxy ends if `start` has started it and no other program is attached."""
        self._socket.close()

    def __enter__(self) -> Attachment:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()


def call(home: Path, verb: str, *arguments: str) -> Any:
    """Return the result of `verb`, for example "status". Return None if no proxy is running. Raises CommandError."""
    found = _request(home, verb, *arguments)
    if found is None:
        return None
    found[0].close()
    return found[1]


def attach(home: Path) -> Attachment | None:
    """Attach to the proxy of `home`. Return None if no proxy is running. Raises CommandError."""
    found = _request(home, ATTACH)
    return None if found is None else Attachment(*found)


def stop(home: Path) -> int | None:
    """Stop the proxy and wait until it has ended. Return its process id, or None if no proxy is running.

    Raises CommandError if the proxy does not answer or does not end.
    """
    if found := _request(home, STOP):
        found[0].close()
    lock = paths.gateway_dir(home) / "lock"
    deadline = time.monotonic() + STOP_SECONDS
    pid: int | None = None
    while owner := _owner(lock):
        pid = owner
        if time.monotonic() > deadline:
            raise _silent(f"the proxy did not stop within {STOP_SECONDS:g} s; to end it: kill -9 {pid}")
        time.sleep(POLL_SECONDS)
    if found:
        pid = found[1]["pid"]
    if pid is not None:
        await_end(pid)  # The process releases the lock just before its end.
    return pid


def start(home: Path, arguments: Sequence[str] = (), env: Mapping[str, str] | None = None) -> Attachment:
    """Attach to the proxy of `home`. If none is running, start one that ends when the last program has detached.

    `arguments` are those of `orch proxy`, for a new proxy only. `env` is its environment. The output of the proxy goes
    to `gateway/proxy.log` in `home`. Raises CommandError.
    """
    if attached := attach(home):
        return attached
    log = paths.private_dir(paths.gateway_dir(paths.private_dir(home))) / LOG
    env = dict(os.environ if env is None else env) | {"ORCH_HOME": str(home)}
    with open(os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb") as output:
        process = subprocess.Popen(
            [sys.executable, "-P", "-m", "orch", "proxy", "--port", "0", "--until-detached", *arguments],
            env=env,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            start_new_session=True,  # Ctrl-C in the terminal is for the client, which may need the proxy afterwards.
        )
    deadline = time.monotonic() + START_SECONDS
    while True:
        has_ended = process.poll() is not None
        if attached := attach(home):
            process.returncode = 0 if process.returncode is None else process.returncode  # It outlives this process.
            return attached
        if has_ended:
            raise CommandError("LaunchError", f"the proxy did not start. The end of {log}:\n{_tail(log)}")
        if time.monotonic() > deadline:
            process.kill()
            process.wait()
            raise _silent(f"the proxy did not start within {START_SECONDS:g} s and was ended: see {log}")
        time.sleep(POLL_SECONDS)


def _request(home: Path, verb: str, *arguments: str) -> tuple[socket.socket, Any] | None:
    """Return a connection and the result of `verb` on it. Return None if no proxy is running."""
    folder = paths.gateway_dir(home)
    if not folder.is_dir():
        return None
    connected = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    connected.settimeout(ANSWER_SECONDS)
    try:
        connected.connect(paths.announced_socket(folder, SOCKET))
        connected.sendall(json.dumps({"verb": verb, "arguments": arguments}).encode() + b"\n")
        answer = _line(connected)
    except (FileNotFoundError, ConnectionError):
        connected.close()
        return None
    except TimeoutError:
        connected.close()
        raise _silent(f"the proxy does not answer within {ANSWER_SECONDS:g} s; {_ending(folder)}") from None
    except OSError as error:
        connected.close()
        raise CommandError("ProxySilent", f"cannot connect to the proxy: {error.strerror}; {_ending(folder)}") from None
    if "error" in answer:
        connected.close()
        if answer["error"] == LEAVING:
            return None
        raise CommandError("ProtocolError", answer["error"])
    return connected, answer["result"]


def _owner(lock: Path) -> int | None:
    """Return the process that holds `lock`. Return None if no process holds it."""
    try:
        with open(lock, encoding="ascii") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
            except BlockingIOError:
                return int(file.read() or 0) or None
    except (FileNotFoundError, ValueError):
        pass
    return None


def _line(connected: socket.socket) -> dict[str, Any]:
    """Return the next line. Raises ConnectionError at the end."""
    received = b""
    while not received.endswith(b"\n"):
        piece = connected.recv(1 << 16)
        if not piece:
            raise ConnectionResetError
        received += piece
    answer: dict[str, Any] = json.loads(received)
    return answer


def _silent(message: str) -> CommandError:
    return CommandError("ProxySilent", message)


def _ending(folder: Path) -> str:
    try:
        return f"to end it: kill -9 {int((folder / 'lock').read_text())}"
    except (OSError, ValueError):
        return f"its lock is {folder / 'lock'}"


def _tail(log: Path) -> str:
    return log.read_bytes()[-TAIL_BYTES:].decode(errors="replace").strip()
