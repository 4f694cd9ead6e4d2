"""Starting the daemon with a clean environment: detached, or in the foreground in place of this process."""

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
from orch_worker.system.secrets import SEARCH_KEY

from ..config import paths
from ..config.config import load
from ..processes.environment import clean_environment
from ..processes.worker_logs import open_log
from .failure import CommandError

__all__ = ["run_daemon", "start_daemon"]

TAIL = 2000
COMMAND = (sys.executable, "-P", "-m", "orch.daemon.daemon")


def start_daemon(env: Mapping[str, str], log: str, seconds: float) -> bool:
    """Start a daemon and return once it listens. False when another one holds the lock. Raises Failure."""
    home = paths.private_dir(paths.home(env))
    paths.private_dir(paths.daemon_dir(home))
    theirs, _ = _environment(env, home)
    ready_read, ready_write = os.pipe()
    log_descriptor = -1
    try:
        log_descriptor = _open_log(log)
        process = subprocess.Popen(
            [*COMMAND, "--ready", str(ready_write)],
            cwd=home,
            env=theirs,
            stdin=subprocess.DEVNULL,
            stdout=log_descriptor,
            stderr=log_descriptor,
            pass_fds=(ready_write,),
            start_new_session=True,
        )
        os.close(ready_write)
        ready_write = -1
        said = _read(ready_read, seconds)
    finally:
        for descriptor in (ready_read, ready_write, log_descriptor):
            if descriptor >= 0:
                os.close(descriptor)
    if said is None:
        process.kill()
        process.wait()
        raise CommandError("DaemonSilent", f"the daemon was not up within {seconds:g} s and was ended: see {log}")
    if not said:
        code = process.wait()
        if code == ALREADY_RUNNING:
            return False
        raise CommandError(
            "LaunchError", f"the daemon ended with {code} before it was up. The end of {log}:\n{_tail(log)}"
        )
    told = json.loads(said)
    if error := told.get("error"):
        process.wait()
        raise CommandError(error["type"], error["message"], int(error["exit_code"]))
    process.returncode = 0  # it is not ours to wait for: it outlives us
    return True


def run_daemon(env: Mapping[str, str]) -> NoReturn:
    """Become the daemon, in the foreground. It uses the model variables in `env` for callers without keys.

    They are handed over by a pipe, so that the environment of the process holds none. Raises Failure.
    """
    home = paths.private_dir(paths.home(env))
    paths.private_dir(paths.daemon_dir(home))
    theirs, keys = _environment(env, home)
    read, write = os.pipe()
    with open(write, "wb") as pipe:
        pipe.write(json.dumps(keys).encode())
    os.set_inheritable(read, True)
    os.chdir(home)
    os.execve(sys.executable, [*COMMAND, "--keys", str(read)], theirs)


def _environment(env: Mapping[str, str], home: Path) -> tuple[dict[str, str], dict[str, str]]:
    """Return the environment of the daemon, and the variables of model providers in `env`.

    Where the configuration is invalid its defaults count here; the daemon reports the error.
    """
    try:
        passed, known = load(None, env, home=home).config.environment.pass_, models.load(home)
    except OrchError:
        passed, known = (), models.load()
    given = {**env, "ORCH_HOME": str(home), "PYTHONPATH": _python_path(env)}
    keys = {name: env[name] for name in (*known.credentials, SEARCH_KEY) if env.get(name)}
    return clean_environment("daemon", given, passed), keys


def _open_log(log: str) -> int:
    try:
        descriptor = open_log(log)
        os.fchmod(descriptor, 0o600)
    except OSError as error:
        message = f"the daemon's log {log} cannot be written: {error.strerror}. Make it so, or set another ORCH_HOME"
        raise CommandError("StoreError", message) from error
    return descriptor


def _python_path(env: Mapping[str, str]) -> str:
    """Return a PYTHONPATH on which the daemon finds this very orch."""
    root = Path(__file__).resolve().parents[2]
    installed = root.name in ("site-packages", "dist-packages")
    return os.pathsep.join(filter(None, ["" if installed else str(root), env.get("PYTHONPATH", "")]))


def _read(descriptor: int, seconds: float) -> bytes | None:
    """Return a line from the pipe, nothing when it was closed without one, None when time ran out."""
    deadline = time.monotonic() + seconds
    poll = select.poll()
    poll.register(descriptor, select.POLLIN)
    said = b""
    while not said.endswith(b"\n"):
        if not poll.poll(max(0.0, deadline - time.monotonic()) * 1000):
            return None
        chunk = os.read(descriptor, 65536)
        if not chunk:
            return b""
        said += chunk
    return said


def _tail(log: str) -> str:
    with open(log, "rb") as file:
        file.seek(max(0, os.fstat(file.fileno()).st_size - TAIL))
        return file.read().decode("utf-8", "replace").strip()
