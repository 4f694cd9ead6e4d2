"""Asks a question on the controlling terminal (/dev/tty), even when stdin and stderr are redirected.

Only the foreground process group may ask. Several processes on one terminal ask their questions one after another.
"""

from __future__ import annotations

import os
import time

from ...config import paths

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Literal

    TerminalAccess = Literal["foreground", "background", "none"]

__all__ = ["NoTerminalError", "ask", "reach"]

DEVICE = "/dev/tty"
LOCK = "questions.lock"
POLL_SECONDS = 0.1
MAX_ANSWER_BYTES = 4096


class NoTerminalError(Exception):
    """This process has no controlling terminal, or does not belong to the foreground process group of the terminal."""


def reach() -> TerminalAccess:
    """Return whether this process has a controlling terminal and belongs to the terminal's foreground process group."""
    try:
        tty = _open()
    except OSError:
        return "none"
    try:
        return "foreground" if _in_foreground(tty) else "background"
    finally:
        os.close(tty)


def ask(question: str, seconds: float) -> str:
    """Write `question` to the terminal and return the line that the user types.

    Return "" after `seconds` without a line. The time includes waiting for questions of other processes on the same
    terminal. Input that was typed before the question appears is discarded. Raises NoTerminalError.
    """
    deadline = time.monotonic() + seconds
    try:
        tty = _open()
    except OSError as error:
        raise NoTerminalError from error
    try:
        if not _in_foreground(tty):
            raise NoTerminalError
        lock = _acquire_lock(deadline)
        if lock is None:
            return ""
        try:
            return _read_answer(tty, question, deadline)
        finally:
            os.close(lock)
    finally:
        os.close(tty)


def _open() -> int:
    return os.open(DEVICE, os.O_RDWR | os.O_NOCTTY | os.O_CLOEXEC)


def _in_foreground(tty: int) -> bool:
    try:
        return os.tcgetpgrp(tty) == os.getpgrp()
    except OSError:
        return False  # the terminal was closed


def _acquire_lock(deadline: float) -> int | None:
    """Wait for the terminal's lock until `deadline` and return its descriptor.

    Return None if the lock is not free by then. Closing the descriptor releases the lock. The lock covers the byte of a
    file at the offset of the session id, because a terminal belongs to one session. The kernel releases the lock when
    the process ends.
    """
    import fcntl

    file = os.path.join(paths.home_text(), "daemon", LOCK)
    lock = os.open(file, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    try:
        while True:
            try:
                fcntl.lockf(lock, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, os.getsid(0))
                return lock
            except (BlockingIOError, PermissionError):
                if time.monotonic() >= deadline:
                    os.close(lock)
                    return None
                time.sleep(POLL_SECONDS)
    except BaseException:
        os.close(lock)
        raise


def _read_answer(tty: int, question: str, deadline: float) -> str:
    import select
    import termios

    try:
        termios.tcflush(tty, termios.TCIFLUSH)
        os.write(tty, question.encode(errors="replace"))
        while (remaining := deadline - time.monotonic()) > 0:
            ready, _, _ = select.select([tty], [], [], min(remaining, 1.0))
            if ready and _in_foreground(tty):
                return os.read(tty, MAX_ANSWER_BYTES).decode(errors="replace")
            if ready:
                time.sleep(POLL_SECONDS)  # the input belongs to the foreground group
        os.write(tty, b"\nnobody answered in time\n")
    except (OSError, termios.error):
        pass  # the terminal was closed
    return ""
