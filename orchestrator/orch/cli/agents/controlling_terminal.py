"""The controlling terminal (/dev/tty): ask one question there, also when stdin and stderr are redirected.

Only the foreground process group may ask. Questions of several processes on one terminal take turns.
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
MOST_TYPED = 4096


class NoTerminalError(Exception):
    """This process has no controlling terminal, or is not in its foreground process group."""


def reach() -> TerminalAccess:
    """Return whether this process has a controlling terminal, and whether it is in the terminal's foreground group."""
    try:
        tty = _open()
    except OSError:
        return "none"
    try:
        return "foreground" if _in_foreground(tty) else "background"
    finally:
        os.close(tty)


def ask(question: str, seconds: float) -> str:
    """Write `question` to the terminal and return the line typed in reply; "" if none is typed within `seconds`.

    Waits for the questions of other processes on the same terminal; that time counts. Input typed before the question
    is shown is discarded. Raises NoTerminalError.
    """
    deadline = time.monotonic() + seconds
    try:
        tty = _open()
    except OSError as error:
        raise NoTerminalError from error
    try:
        if not _in_foreground(tty):
            raise NoTerminalError
        lock = _take_turn(deadline)
        if lock is None:
            return ""
        try:
            return _answer(tty, question, deadline)
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


def _take_turn(deadline: float) -> int | None:
    """Return a descriptor that holds the terminal's lock until it is closed; None if it is not free by `deadline`.

    The lock is byte number (session id) of one file: a terminal belongs to one session. The kernel releases it when
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


def _answer(tty: int, question: str, deadline: float) -> str:
    import select
    import termios

    try:
        termios.tcflush(tty, termios.TCIFLUSH)
        os.write(tty, question.encode(errors="replace"))
        while (left := deadline - time.monotonic()) > 0:
            ready, _, _ = select.select([tty], [], [], min(left, 1.0))
            if ready and _in_foreground(tty):
                return os.read(tty, MOST_TYPED).decode(errors="replace")
            if ready:
                time.sleep(POLL_SECONDS)  # what was typed is for the foreground group
        os.write(tty, b"\nnobody answered in time\n")
    except (OSError, termios.error):
        pass  # the terminal was closed
    return ""
