"""Runs a client in the terminal of this process: its standard streams, job control and signals stay as without orch."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from types import FrameType
from typing import Final

__all__ = ["run"]

OF_TERMINAL: Final = (signal.SIGINT, signal.SIGQUIT, signal.SIGTSTP)
"""Signals that the terminal sends to both processes. The client decides what they mean.

If SIGTSTP stopped this process too, it could see the client's stop only after it was continued, and stop again.
"""
FORWARDED: Final = (signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2)
SIGNALED: Final = 128


def run(command: Sequence[str], env: Mapping[str, str]) -> int:
    """Run `command` and return its exit code, 128 plus the number of the signal that ended it. Raises OSError."""
    waiting: list[int] = []
    process: subprocess.Popen[bytes] | None = None

    def forward(number: int, _frame: FrameType | None) -> None:
        if process is None:
            waiting.append(number)
        else:
            process.send_signal(number)

    with _handled(forward):
        process = subprocess.Popen(command, env=dict(env))
        for number in waiting:
            process.send_signal(number)
        return _wait(process)


def _wait(process: subprocess.Popen[bytes]) -> int:
    while True:
        _, status = os.waitpid(process.pid, os.WUNTRACED)
        if os.WIFSTOPPED(status):
            os.kill(os.getpid(), signal.SIGSTOP)  # The shell gets the terminal, and continues both processes later.
            process.send_signal(signal.SIGCONT)
            continue
        code = os.waitstatus_to_exitcode(status)
        process.returncode = code
        return code if code >= 0 else SIGNALED - code


@contextmanager
def _handled(forward: signal.Handlers | object) -> Iterator[None]:
    """Handle signals with functions, because the client would inherit that signals are ignored."""
    previous = {number: signal.getsignal(number) for number in (*OF_TERMINAL, *FORWARDED)}
    try:
        for number in OF_TERMINAL:
            if previous[number] is not signal.SIG_IGN:
                signal.signal(number, lambda _number, _frame: None)
        for number in FORWARDED:
            if previous[number] is not signal.SIG_IGN:
                signal.signal(number, forward)  # type: ignore[arg-type]
        yield
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)
