"""The start and the end of a worker process."""

from __future__ import annotations

import faulthandler
import gc
import io
import os
import signal
import sys
import traceback
from collections.abc import Callable
from typing import Any, Final, NoReturn

from orch_protocol.agent.spec import WorkerBirth
from orch_protocol.wire.zygote_messages import LENGTH_BYTES, ForkWorker, decode_birth, decode_fork

from ..system import linux
from ..system.importing import Entry, load
from ..system.secrets import mask_secrets, secrets_of

__all__ = ["prepare", "protect_memory", "run_worker"]

LIFELINE: Final = 3
BUFFER_BYTES: Final = 1024
DEBUG_SWITCH: Final = "ORCH_DEBUG_DUMPABLE"


def prepare() -> None:
    """Set up standard streams and crash reports. Forked processes inherit the streams and the crash reports.

    The streams use the descriptors 0 to 2, even if these descriptors are replaced later.
    """
    sys.stdin = os.fdopen(0, encoding="utf-8", closefd=False)
    sys.stdout, sys.stderr = _LossyLog.stream(1), _LossyLog.stream(2)
    faulthandler.enable(file=2)


def run_worker(entry: Callable[[], Entry], fork: ForkWorker, pipe: int) -> NoReturn:
    """Run as the worker described by `fork`, then end the process. `pipe` is the read end of the birth pipe.

    `prepare` must have run, and signals must have their defaults. `entry` returns the worker's `main`, whose result is
    the exit code. SystemExit sets the exit code. Any other exception is logged, and the exit code is 1. The process
    ends without the interpreter's cleanup.
    """
    code = 1
    try:
        birth = _set_up_process(fork, pipe)
        _MaskedText.secrets = secrets_of(birth.keys)
        code = _code(
            entry()(
                birth=birth,
                address=fork.address,
                ident=fork.ident,
                incarnation=fork.incarnation,
                agent_id=fork.agent_id,
                spool=fork.spool,
            )
        )
    except SystemExit as leaving:
        code = _code(leaving.code)
    except BaseException:
        traceback.print_exc()
    finally:
        for stream in (sys.stdout, sys.stderr):
            try:
                stream.flush()
            except (OSError, ValueError):
                pass  # A full disk or a closed stream cannot be reported here.
        os._exit(code)


def protect_memory() -> None:
    """Protect the memory of this process from other processes.

    ORCH_DEBUG_DUMPABLE=1 disables this protection for debugging.
    """
    if os.environ.get(DEBUG_SWITCH) != "1":
        linux.hide_memory()


def _set_up_process(fork: ForkWorker, pipe: int) -> WorkerBirth:
    """Connect this process to its root, and close all other inherited descriptors."""
    birth = _read_birth(pipe)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    sys.stdin = open(0, closefd=False)  # noqa: SIM115 - replaces one of `multiprocess` whose descriptor is closed below
    try:
        log = os.open(fork.log, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError as error:
        print(f"{fork.log}: {error.strerror}", flush=True)  # Continue with the inherited log.
    else:
        os.dup2(log, 1)
        os.dup2(log, 2)
    if pipe != LIFELINE:
        os.dup2(pipe, LIFELINE)
    os.set_inheritable(LIFELINE, False)
    linux.close_from(LIFELINE + 1)
    linux.arm_lifeline(LIFELINE)
    if os.getpgrp() != os.getpid():
        os.setpgid(0, 0)
    # The worker adopts orphans of its tools. The shim adopts them only after the worker ended.
    linux.become_subreaper()
    if birth.paths is not None:
        from .hide_paths import hide_paths  # This import is slow and needed only here.

        hide_paths(birth.paths)
    # On SIGTERM, print the stack, even if a C call blocks the interpreter.
    faulthandler.register(signal.SIGTERM, file=2, chain=True)
    protect_memory()
    gc.enable()
    return birth


class _LossyLog(io.FileIO):
    """A log that drops output if writing fails, so that a full disk does not cause further errors."""

    def write(self, data: Any) -> int:
        try:
            return super().write(data)
        except OSError:
            return len(data)

    @classmethod
    def stream(cls, descriptor: int) -> io.TextIOWrapper:
        raw = io.BufferedWriter(cls(descriptor, "w", closefd=False), BUFFER_BYTES)
        return _MaskedText(raw, encoding="utf-8", errors="backslashreplace", line_buffering=True)


class _MaskedText(io.TextIOWrapper):
    """A text stream that masks the API keys of this process, because error messages may quote the keys."""

    secrets: tuple[str, ...] = ()

    def write(self, text: str) -> int:
        return super().write(mask_secrets(text, self.secrets))


def _read_birth(pipe: int) -> WorkerBirth:
    # The root has written the whole message before the request. End of file means that the root canceled the message.
    head = os.read(pipe, LENGTH_BYTES)
    if len(head) < LENGTH_BYTES:
        os._exit(1)
    return decode_birth(os.read(pipe, int.from_bytes(head)))


def _code(value: object) -> int:
    """Return the exit code of `sys.exit(value)`."""
    if value is None:
        return 0
    if isinstance(value, int):
        return value & 0xFF
    print(value, file=sys.stderr)
    return 1


def main(entry: str, pipe: str, fork: str) -> NoReturn:
    """Run a worker as a separate process. `fork` is an encoded ForkWorker in hex. `pipe` is an inherited descriptor."""
    linux.reset_signals()
    prepare()
    run_worker(lambda: load(entry), decode_fork(bytes.fromhex(fork)), int(pipe))
