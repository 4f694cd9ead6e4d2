"""The first and the last moments of a worker's process."""

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
    """Do what a worker's process needs once and its forks inherit: standard streams, and a report should it crash.

    The streams are those of the descriptors 0 to 2, whatever these come to be.
    """
    sys.stdin = os.fdopen(0, encoding="utf-8", closefd=False)
    sys.stdout, sys.stderr = _LossyLog.stream(1), _LossyLog.stream(2)
    faulthandler.enable(file=2)


def run_worker(entry: Callable[[], Entry], fork: ForkWorker, pipe: int) -> NoReturn:
    """Be the worker that `fork` asks for, with `pipe` the read end of its birth pipe, and end the process.

    The process, or the one it was forked from, is prepared, and its signals are the system's. `entry` returns the
    worker's `main`. Its return value is the exit code, as is that of a SystemExit; any other exception goes to the log
    and exits 1. Nothing that the interpreter would do at its end is waited for.
    """
    code = 1
    try:
        birth = _settle(fork, pipe)
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
                pass  # a full disk, a closed stream: nobody is left to tell
        os._exit(code)


def protect_memory() -> None:
    """Keep what is in the memory of this process from others, unless somebody who debugs it has said otherwise."""
    if os.environ.get(DEBUG_SWITCH) != "1":
        linux.hide_memory()


def _settle(fork: ForkWorker, pipe: int) -> WorkerBirth:
    """Tie this process to its root and cut it off from everything else it came with."""
    birth = _read_birth(pipe)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    try:
        log = os.open(fork.log, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError as error:
        print(f"{fork.log}: {error.strerror}", flush=True)  # it goes on in the log that it came with, to say why not
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
    # What its tools lose falls to this worker, not to the shim: only the end of the worker makes it an orphan.
    linux.become_subreaper()
    if birth.paths is not None:
        from .hide_paths import hide_paths  # only here: importing it takes long where nothing was imported before

        hide_paths(birth.paths)
    # Whoever is told to end says where it was, also while a call in C keeps everything else waiting.
    faulthandler.register(signal.SIGTERM, file=2, chain=True)
    protect_memory()
    gc.enable()
    return birth


class _LossyLog(io.FileIO):
    """A log that is lost when it cannot be written: a full disk must not turn a report of an error into another."""

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
    """Text without the keys of this process, whoever writes it: an error may quote what it was given."""

    secrets: tuple[str, ...] = ()

    def write(self, text: str) -> int:
        return super().write(mask_secrets(text, self.secrets))


def _read_birth(pipe: int) -> WorkerBirth:
    # The root wrote all of it before the worker was asked for; an end of file means that it has changed its mind.
    head = os.read(pipe, LENGTH_BYTES)
    if len(head) < LENGTH_BYTES:
        os._exit(1)
    return decode_birth(os.read(pipe, int.from_bytes(head)))


def _code(value: object) -> int:
    """Return the exit code that `sys.exit(value)` means."""
    if value is None:
        return 0
    if isinstance(value, int):
        return value & 0xFF
    print(value, file=sys.stderr)
    return 1


def main(entry: str, pipe: str, fork: str) -> NoReturn:
    """Be a worker in a process of its own: `fork` is the hex of an encoded Fork, `pipe` an inherited descriptor."""
    linux.reset_signals()
    prepare()
    run_worker(lambda: load(entry), decode_fork(bytes.fromhex(fork)), int(pipe))
