"""Starts the daemon with a clean environment, either detached or in the foreground in place of this process."""

from __future__ import annotations

import json
import os
import select
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import NoReturn

from orch_protocol.core.errors import OrchError
from orch_protocol.wire.control_socket import ALREADY_RUNNING
from orch_worker.backends import models
from orch_worker.system.memory_limit import with_memory_limit
from orch_worker.system.secrets import SEARCH_KEY

from ..config import paths
from ..config.config import load
from ..processes.environment import clean_environment
from ..processes.worker_logs import open_log
from .failure import CommandError

__all__ = ["run_daemon", "start_daemon"]

TAIL_BYTES = 2000
COMMAND = (sys.executable, "-P", "-m", "orch.daemon.daemon")


def start_daemon(env: Mapping[str, str], log: str, seconds: float) -> bool:
    """Start a daemon and return True when it listens.

    Return False if another daemon holds the lock. Raises CommandError.
    """
    home = paths.private_dir(paths.home(env))
    paths.private_dir(paths.daemon_dir(home))
    daemon_env, _ = _environment(env, home)
    ready_read, ready_write = os.pipe()
    log_descriptor = -1
    try:
        log_descriptor = _open_log(log)
        process = subprocess.Popen(
            [*COMMAND, "--ready", str(ready_write)],
            cwd=home,
            env=daemon_env,
            stdin=subprocess.DEVNULL,
            stdout=log_descriptor,
            stderr=log_descriptor,
            pass_fds=(ready_write,),
            start_new_session=True,
        )
        os.close(ready_write)
        ready_write = -1
        report = _read(ready_read, seconds)
    finally:
        for descriptor in (ready_read, ready_write, log_descriptor):
            if descriptor >= 0:
                os.close(descriptor)
    if report is None:
        process.kill()
        process.wait()
        raise CommandError("DaemonSilent", f"the daemon did not start within {seconds:g} s and was killed: see {log}")
    if not report:
        code = process.wait()
        if code == ALREADY_RUNNING:
            return False
        raise CommandError(
            "LaunchError",
            f"the daemon ended with exit code {code} during its start. The end of {log}:\n"
            f"{with_memory_limit(_tail(log))}",
        )
    fields = json.loads(report)
    if error := fields.get("error"):
        process.wait()
        raise CommandError(error["type"], error["message"], int(error["exit_code"]))
    process.returncode = 0  # keeps Popen from waiting for the daemon, which outlives this process
    return True


def run_daemon(env: Mapping[str, str]) -> NoReturn:
    """Replace this process with the daemon. For callers without keys, the daemon uses the model variables in `env`.

    The variables are passed through a pipe, so that the environment of the process does not contain them. Raises
    CommandError.
    """
    home = paths.private_dir(paths.home(env))
    paths.private_dir(paths.daemon_dir(home))
    daemon_env, keys = _environment(env, home)
    read, write = os.pipe()
    with open(write, "wb") as pipe:
        pipe.write(json.dumps(keys).encode())
    os.set_inheritable(read, True)
    os.chdir(home)
    os.execve(sys.executable, [*COMMAND, "--keys", str(read)], daemon_env)


def _environment(env: Mapping[str, str], home: Path) -> tuple[dict[str, str], dict[str, str]]:
    """Return the environment of the daemon, and the variables of model providers in `env`.

    If the configuration is invalid, default values are used here, and the daemon reports the error.
    """
    try:
        passed, known = load(None, env, home=home).config.environment.pass_, models.load(home)
    except OrchError:
        passed, known = (), models.load()
    variables = {**env, "ORCH_HOME": str(home), "PYTHONPATH": _python_path(env)}
    keys = {name: env[name] for name in (*known.credentials, SEARCH_KEY) if env.get(name)}
    return clean_environment("daemon", variables, passed), keys


def _open_log(log: str) -> int:
    try:
        descriptor = open_log(log)
        os.fchmod(descriptor, 0o600)
    except OSError as error:
        message = f"the daemon's log {log} cannot be written: {error.strerror}. Make it writable or change ORCH_HOME"
        raise CommandError("StoreError", message) from error
    return descriptor


def _python_path(env: Mapping[str, str]) -> str:
    """Return a PYTHONPATH that lets the daemon import this installation of orch."""
    root = Path(__file__).resolve().parents[2]
    installed = root.name in ("site-packages", "dist-packages")
    return os.pathsep.join(filter(None, ["" if installed else str(root), env.get("PYTHONPATH", "")]))


def _read(descriptor: int, seconds: float) -> bytes | None:
    """Return a line from the pipe. Return b"" if the pipe was closed without a line. Return None after the timeout."""
    deadline = time.monotonic() + seconds
    poll = select.poll()
    poll.register(descriptor, select.POLLIN)
    data = b""
    while not data.endswith(b"\n"):
        if not poll.poll(max(0.0, deadline - time.monotonic()) * 1000):
            return None
        chunk = os.read(descriptor, 65536)
        if not chunk:
            return b""
        data += chunk
    return data


def _tail(log: str) -> str:
    with open(log, "rb") as file:
        file.seek(max(0, os.fstat(file.fileno()).st_size - TAIL_BYTES))
        return file.read().decode("utf-8", "replace").strip()
