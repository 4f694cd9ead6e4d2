"""The start and the end of a worker process."""

from __future__ import annotations

import faulthandler
import fcntl
import gc
import io
import os
import signal
import sys
import traceback
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Final, NoReturn

from orch_protocol.agent.spec import WorkerBirth
from orch_protocol.wire.zygote_messages import LENGTH_BYTES, ForkWorker, decode_birth, decode_fork

from ..system import linux
from ..system.importing import Entry, load
from ..system.secrets import mask_secrets, secrets_of

if TYPE_CHECKING:
    from ..tool_host.client import StartHost

__all__ = ["connect_process", "end_process", "prepare", "protect_memory", "run_worker"]

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


def run_worker(entry: Callable[[], Entry], fork: ForkWorker, pipe: int, zygote: int | None = None) -> NoReturn:
    """Run as the worker described by `fork`, then end the process. `pipe` is the read end of the birth pipe.

    `zygote` is the socket on which the zygote takes requests for tool hosts. None if there is no zygote.

    `prepare` must have run, and signals must have their defaults. `entry` returns the worker's `main`, whose result is
    the exit code. SystemExit sets the exit code. Any other exception is logged, and the exit code is 1. The process
    ends without the interpreter's cleanup.
    """
    code = 1
    try:
        birth, zygote = _set_up_process(fork, pipe, zygote)
        _MaskedText.secrets = secrets_of(birth.keys)
        code = _code(
            entry()(
                birth=birth,
                address=fork.address,
                ident=fork.ident,
                incarnation=fork.incarnation,
                agent_id=fork.agent_id,
                spool=fork.spool,
                start_tool_host=_tool_host_starter(fork.req, zygote),
            )
        )
    except SystemExit as leaving:
        code = _code(leaving.code)
    except BaseException:
        traceback.print_exc()
    finally:
        end_process(code)


def end_process(code: int) -> NoReturn:
    """End the process without the interpreter's cleanup, after its output is written."""
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


def connect_process(lifeline: int, log: int | None, kept: Sequence[int] = ()) -> list[int]:
    """Tie this process to the pipe `lifeline`, write to `log`, and close all other descriptors except `kept`.

    Return the new numbers of `kept`. If `log` is None, the inherited log stays.
    """
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    sys.stdin = open(0, closefd=False)  # noqa: SIM115 - replaces one of `multiprocess` whose descriptor is closed below
    if log is not None:
        os.dup2(log, 1)
        os.dup2(log, 2)
    # The descriptors are moved up first, because a target may be the number of another one.
    moved = [fcntl.fcntl(each, fcntl.F_DUPFD_CLOEXEC, LIFELINE + 1 + len(kept)) for each in (lifeline, *kept)]
    for target, descriptor in enumerate(moved, LIFELINE):
        os.dup2(descriptor, target, inheritable=False)
    linux.close_from(LIFELINE + len(moved))
    linux.arm_lifeline(LIFELINE)
    if os.getpgrp() != os.getpid():
        os.setpgid(0, 0)
    # The process adopts orphans of its tools. The shim adopts them only after the process ended.
    linux.become_subreaper()
    # On SIGTERM, print the stack, even if a C call blocks the interpreter.
    faulthandler.register(signal.SIGTERM, file=2, chain=True)
    gc.enable()
    return list(range(LIFELINE + 1, LIFELINE + len(moved)))


def _set_up_process(fork: ForkWorker, pipe: int, zygote: int | None) -> tuple[WorkerBirth, int | None]:
    """Connect this process to its root, and close all other inherited descriptors except `zygote`."""
    birth = _read_birth(pipe)
    try:
        log = os.open(fork.log, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError as error:
        print(f"{fork.log}: {error.strerror}", flush=True)  # Continue with the inherited log.
        log = None
    kept = connect_process(pipe, log, [] if zygote is None else [zygote])
    protect_memory()
    return birth, kept[0] if kept else None


def _tool_host_starter(req: int, zygote: int | None) -> StartHost:
    from .start_tool_host import fork_tool_host, run_tool_host_program

    return run_tool_host_program if zygote is None else partial(fork_tool_host, zygote, req)


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
